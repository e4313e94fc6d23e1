"""What Whisper needs around its decoder: loading, the words of its prompt, the sound before it.

Source: Radford et al. 2022, arXiv:2212.04356; the model classes and the log-mel features are those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from harness.backbones.text import load
from harness.core.task import Prompt
from harness.errors import UsageError, WeightsError

RATE = 16_000
"""Samples a second."""
FRAME = 320
"""Samples that become one state of the encoder."""
SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")
"""Where a generation configuration keeps what is never said, and what is not said first."""
LOUDEST = 1.5
"""A waveform lies within -1 and 1; resampling may pass that a little, unscaled integers by far."""


def read_model(name: str, folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, every tensor of it read from there.

    Raises:
        WeightsError: another architecture, a damaged file, or missing tensors.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise WeightsError(
            f"{name}: the configuration in {folder} cannot be read ({error}). Delete that folder and fetch again"
        ) from error
    refuse(name, config)
    return load.read_whole(name, folder, WhisperForConditionalGeneration, config=config, dtype=dtype)


def make_random(name: str, fields: Mapping[str, Any]) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were.

    Raises:
        WeightsError: the fields configure no Whisper.
    """
    config = load.configure(name, fields)
    refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return WhisperForConditionalGeneration(config)


def refuse(name: str, config: Any) -> None:
    """Raise a WeightsError for what the fused decoder does not compute."""
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
        known = generation.lang_to_id
        if f"<|{language}|>" not in known:
            spoken = ", ".join(sorted(token.strip("<|>") for token in known))
            raise UsageError(f"{name}: it does not know the language {language!r}; it knows {spoken}")
        ids += [known[f"<|{language}|>"], generation.task_to_id["transcribe"]]
    elif language != "en":
        raise UsageError(f"{name}: it knows English alone; found language {language!r}")
    plain = getattr(generation, "no_timestamps_token_id", None)
    return tuple(ids if plain is None else [*ids, plain])


def suppressed(generation: Any, key: str, vocabulary: int) -> list[int]:
    """Ids that a key of ``SUPPRESSED`` names; those outside the vocabulary mean nothing, as in transformers."""
    return [token for token in getattr(generation, key, None) or () if 0 <= token < vocabulary]


class Ears:
    """From a waveform to the encoder's states.

    Args:
        model: a Whisper; its encoder is used as it is.
    """

    def __init__(self, model: Any) -> None:
        self._encoder = model.model.encoder
        self._most = FRAME * int(model.config.max_source_positions)
        self._features = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins, sampling_rate=RATE)

    def samples(self, name: str, prompt: Prompt) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The waveform of a prompt, checked.

        Raises:
            UsageError: there is none, or it is empty, too long, not mono, not float, not finite or not scaled.
        """
        wave, where = prompt.condition, f"{name}: the prompt {prompt.id!r}"
        wanted = f"a float waveform [samples] at {RATE} Hz between -1 and 1"
        if wave is None:
            raise UsageError(f"{where} has no recording; Whisper needs {wanted} as its condition")
        if wave.ndim != 1 or not np.issubdtype(wave.dtype, np.floating):
            raise UsageError(f"{where} holds {wave.dtype} {wave.shape}; Whisper needs {wanted}")
        if not 0 < len(wave) <= self._most:
            seconds = f"{len(wave) / RATE:.2f} s of sound"
            raise UsageError(f"{where} holds {seconds}; Whisper hears up to {self._most / RATE:g} s: cut it in pieces")
        loudest = float(np.abs(wave).max())
        if not loudest <= LOUDEST:  # not a number fails too
            raise UsageError(f"{where} has a sample of {loudest:g}; Whisper needs {wanted}")
        return wave.astype(np.float32)

    @torch.inference_mode()
    def hear(self, wave: np.ndarray[Any, np.dtype[np.float32]]) -> Float[Tensor, "S E"]:
        """The encoder's states of a waveform, padded with silence to the length that the model takes."""
        mel = self._features(wave, sampling_rate=RATE, max_length=self._most, return_tensors="pt").input_features
        like = self._encoder.conv1.weight
        states: Tensor = self._encoder(mel.to(like)).last_hidden_state[0]
        return states
