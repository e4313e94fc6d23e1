"""Whisper models of transformers: loading them, and the token ids that their generation configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, WhisperConfig, WhisperForConditionalGeneration

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.errors import UsageError, WeightsError

SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")
"""Keys of a generation configuration: ids that are never drawn, and ids that are not drawn first."""


def read_model(name: str, folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, every tensor of it read from there.

    Raises:
        WeightsError: another architecture, a damaged file, or missing tensors.
    """
    with transformers_models.one_error(name, folder, "has no configuration that can be read"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    refuse(name, config)
    return transformers_models.read_whole(name, folder, WhisperForConditionalGeneration, config=config, dtype=dtype)


def make_random(name: str, fields: Mapping[str, Any]) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were.

    Raises:
        WeightsError: the fields configure no Whisper.
    """
    config = transformers_models.configure(name, fields)
    refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return WhisperForConditionalGeneration(config)


def refuse(name: str, config: Any) -> None:
    """Raise a WeightsError for a model that the fused decoder does not compute."""
    if not isinstance(config, WhisperConfig):
        raise WeightsError(f"{name}: the adapter whisper serves models of type whisper; found {config.model_type}")
    if config.activation_function != "gelu" or config.scale_embedding:
        raise WeightsError(
            f"{name}: its activation is {config.activation_function} and its embedding is "
            f"{'' if config.scale_embedding else 'not '}scaled; every Whisper has gelu and no scale"
        )


def prompt_ids(name: str, generation: Any, language: str) -> tuple[int, ...]:
    """Start of transcript, then language and task where the model has several, then no time stamps.

    Raises:
        UsageError: the model does not know the language.
    """
    ids = [int(generation.decoder_start_token_id)]
    if getattr(generation, "is_multilingual", False):
        languages = generation.lang_to_id
        if f"<|{language}|>" not in languages:
            spoken = ", ".join(sorted(token.strip("<|>") for token in languages))
            raise UsageError(f"{name}: it does not know the language {language!r}; it knows {spoken}")
        ids += [languages[f"<|{language}|>"], generation.task_to_id["transcribe"]]
    elif language != "en":
        raise UsageError(f"{name}: it knows English alone; found language {language!r}")
    plain = getattr(generation, "no_timestamps_token_id", None)
    return tuple(ids if plain is None else [*ids, plain])


def suppressed(generation: Any, key: str, vocabulary: int) -> list[int]:
    """Ids of a key of ``SUPPRESSED``; those outside the vocabulary are ignored, as in transformers."""
    return [token for token in getattr(generation, key, None) or () if 0 <= token < vocabulary]
