"""Reading models of transformers from a ready folder, and rejecting those that this harness cannot serve.

Weights are read tensor by tensor into a model that has shapes alone. The loader of transformers maps a file whole, so
that it stays in memory next to the weights that are packed from it, and imports a library for distributed tensors. Here
a file is mapped in pieces, and each tensor is a copy in the model's type: bit for bit the tensor of that loader.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from stridebench.harness.backbones.checkpoints.streamed import fill, read
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.errors import StrideError, UsageError, WeightsError, WeightsWarning, listed
from stridebench.harness.kernels import int8
from stridebench.harness.machine.surroundings import quiet, reason, remedy

CHANGES = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
}
"""Settings of generate that change tokens, and their values that change none."""
ATTENDING = {"full_attention", "sliding_attention"}
"""Kinds of layers whose whole state is a cache of keys and values."""
CACHES = {"past_key_values", "cache_params"}
"""Names of a cache that a model of transformers takes and whose states can be copied."""


def read_config(name: str, folder: Path) -> Any:
    """Return the configuration of a folder, or raise WeightsError if it is unknown or cannot be served."""
    known = "hf_causal serves causal language models of transformers"
    with one_error(name, folder, "has no configuration that transformers knows", known):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    refuse(name, config)
    return config


@contextmanager
def one_error(name: str, folder: Path, problem: str, advice: str = "") -> Iterator[None]:
    """Raise a WeightsError for any error of a reader of a folder: a damaged or foreign file may cause anything.

    ``problem`` says what cannot be read; the advice is by default to compare the folder with its source.
    """
    try:
        with quiet():
            yield
    except (StrideError, MemoryError):
        raise
    except Exception as error:
        if needs_code(folder):
            raise WeightsError(
                f"{name}: {folder} {problem}. It brings Python code (auto_map), which is never run here. "
                f"Take a model that transformers knows without it"
            ) from error
        raise WeightsError(f"{name}: {folder} {problem} ({reason(error)}). {advice or remedy(folder)}") from error


def needs_code(folder: Path) -> bool:
    """Return whether a configuration of a folder names classes of Python files in it."""
    for file in ("config.json", "tokenizer_config.json"):
        try:
            body = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(body, dict) and body.get("auto_map"):
            return True
    return False


def refuse(name: str, config: Any) -> None:
    """Raise WeightsError for a model whose state cannot be copied or that is not a causal language model."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise WeightsError(
            f"{name}: {kind} is an encoder-decoder; hf_causal serves decoder-only language models "
            f"(Llama, Qwen, Mistral, Gemma, GPT-2 and the like)"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise WeightsError(f"{name}: transformers has no causal language model of type {kind}")
    if is_recurrent(config) and not CACHES & set(inspect.signature(_class_of(config).forward).parameters):
        raise WeightsError(
            f"{name}: {kind} keeps a running state outside of a cache of transformers, so it cannot be taken back to "
            f"before a rejected draft; use a model that takes past_key_values or cache_params"
        )


def is_recurrent(config: Any) -> bool:
    """Return whether a model keeps a running state besides keys and values."""
    other = set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENDING
    return bool(getattr(_class_of(config), "_is_stateful", False) or other)


def _class_of(config: Any) -> Any:
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def attention(name: str, config: Any, asked: str, notes: list[str]) -> str:
    """Return sdpa, or eager with a note if the architecture lacks that kernel; UsageError if it was asked for."""
    refuse(name, config)
    kind = _class_of(config)
    if asked == "eager" or kind._supports_sdpa:
        return asked or "sdpa"
    if asked:
        raise UsageError(f"{name}: {kind.__name__} of transformers has no {asked} attention; set attn to eager")
    notes.append(f"{kind.__name__} of transformers has no sdpa attention, so its attention is eager, which is slower")
    return "eager"


def notes_of(name: str, folder: Path, config: Any) -> list[str]:
    """Return notes of everything in a folder or its configuration that is not applied."""
    notes = []
    if unread := getattr(config, "unread_keys", ()):
        notes.append(f"keys of the GGUF file that nothing reads: {listed(unread)}")
    if (short := short_context(config)) is not None:
        notes.append(f"its context is {short}, because LongRoPE has other factors for longer texts")
    if (folder / "generation_config.json").is_file():
        with one_error(name, folder, "has a damaged generation_config.json"):
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        values = {key: getattr(generation, key, None) for key in CHANGES}
        if changed := [f"{key} = {value}" for key, value in values.items() if value not in (None, *CHANGES[key])]:
            notes.append(f"generate of transformers would differ: generation_config.json sets {listed(changed)}")
    return notes


def check_ids(name: str, stated: int | None, tokenizer: Any, vocabulary: int) -> None:
    """Raise WeightsError if a preset states another vocabulary, or a tokenizer has ids that the model lacks."""
    if stated not in (None, vocabulary):
        raise WeightsError(
            f"{name}: the preset says vocabulary: {stated} and the weights have {vocabulary} ids; these are other "
            f"weights than the preset means, or the preset is wrong"
        )
    if tokenizer is not None and tokenizer.vocab_size > vocabulary:
        raise WeightsError(
            f"{name}: the tokenizer has {tokenizer.vocab_size} ids and the model has {vocabulary}: they belong to "
            f"different models. Take the tokenizer that was published with the weights"
        )


def read_model(
    name: str, folder: Path, config: Any, attn: str, dtype: torch.dtype, later: str = "", **more: Any
) -> Any:
    """Return the model of a folder, every tensor of it read from there, or raise WeightsError.

    Weights may be read ``later`` on that device, when `fill` asks for them; ``more`` are options of the loader.
    """
    for index in folder.glob("*.index.json"):
        with one_error(name, folder, f"has a damaged {index.name}"):
            parts = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        if outside := sorted(part for part in parts if Path(part).is_absolute() or ".." in Path(part).parts):
            raise WeightsError(f"{name}: {index} names {outside[0]}, which lies outside the folder. {remedy(folder)}")
    if not more:
        with one_error(name, folder, "holds weights that cannot be loaded"):
            model = read(folder, config, attn, dtype, later or "cpu")
            if model is not None:
                return model if later else fill(model)
    options = {"config": config, "dtype": dtype, "attn_implementation": attn, **more}
    return read_whole(name, folder, AutoModelForCausalLM, **options)


def read_whole(name: str, folder: Path, kind: Any, unused: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a model of a class of transformers from a folder; warn of tensors that are not read.

    Raises WeightsError if a file is damaged, or tensors are of another shape or missing, but for ``unused`` beginnings
    of names. ``options`` are those of the loader.
    """
    with one_error(name, folder, "holds weights that cannot be loaded"):
        place: Path | None = folder
        if int8.is_packed(folder / "model.safetensors"):
            place, options["state_dict"] = None, int8.read(folder / "model.safetensors")
            kind = _class_of(options["config"])
        model, report = kind.from_pretrained(
            place,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the message below names the tensor and its shapes
            **options,
        )
    if mismatched := sorted(report["mismatched_keys"]):
        shapes = [
            f"{key} in the shape {tuple(stored)}, and its configuration needs {tuple(needed)}"
            for key, stored, needed in mismatched
        ]
        raise WeightsError(
            f"{name}: {folder} has {listed(shapes)} ({len(mismatched)} tensors have another shape). {remedy(folder)}"
        )
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(unused))
    if missing:
        raise WeightsError(
            f"{name}: {folder} lacks {len(missing)} tensors of the model: {listed(missing)}; transformers would make "
            f"them up. {remedy(folder)}"
        )
    if unread := sorted(report["unexpected_keys"]):
        warnings.warn(
            f"{name}: {folder} has {len(unread)} tensors that the model does not read: {listed(unread)}. Drafters and "
            f"adapters of a model are named by parameters of their methods",
            WeightsWarning,
            stacklevel=2,
        )
    return model


def place(model: Any, device: str, dtype: torch.dtype) -> Any:
    """Move a model to a device and its weights into a type. Tables, such as frequencies of rotations, keep theirs."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model.to(device)


def make_random(name: str, fields: Mapping[str, Any], attn: str) -> Any:
    """Return a model of random weights, the same for the same seed, or raise WeightsError if it cannot be served."""
    config = configure(name, fields)
    refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attn)


def configure(name: str, fields: Mapping[str, Any]) -> Any:
    """Return the configuration of a random model, or raise WeightsError if transformers does not know it."""
    try:
        return AutoConfig.for_model(fields["model_type"], **fields["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{name}: transformers cannot configure {fields['model_type']} ({error})") from error


def read_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer, None if it lacks its files, or raise WeightsError if it cannot be read."""
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    with one_error(folder.name, folder, "lacks a readable tokenizer"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def one_longrope(rope: Mapping[str, Any]) -> bool:
    """Return whether parameters of LongRoPE give the same rotations to texts of all lengths."""
    return bool(rope["rope_type"] == "longrope" and rope["short_factor"] == rope["long_factor"])


def short_context(config: Any) -> int | None:
    """Return the length up to which LongRoPE has its short factors, or None if it has one list or is not used.

    A longer text would change to the long factors while its entries in the cache keep the short ones.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope" or one_longrope(rope):
        return None
    return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)


def capabilities(model: Any, meets: frozenset[Requirement]) -> Capabilities:
    """Return the capabilities of a model.

    Raises:
        WeightsError: the ``pard_token`` of its config.json is not an id, or the ``mask_token_id`` of one that meets
            BOTH_MASKS.
    """
    config = model.config.get_text_config()
    block_mask = _filled_id(config, "mask_token_id") if Requirement.BOTH_MASKS in meets else None
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    context = int(getattr(config, "max_position_embeddings", None) or 2048)
    return Capabilities(
        model.get_output_embeddings().weight.shape[0],
        min(context, short_context(config) or context),
        end_ids(eos),
        meets,
        layers=int(config.num_hidden_layers) if Requirement.HIDDEN in meets else 0,
        width=int(config.hidden_size),
        pard=_filled_id(config, "pard_token"),
        block_mask=block_mask,
    )


def _filled_id(config: Any, key: str) -> int | None:
    value: int | None = getattr(config, key, None)
    if not (value is None or isinstance(value, int)):
        raise WeightsError(f"the {key} of a model's config.json is {value!r:.50}; give the one id that it fills")
    return value


def end_ids(eos: Any) -> frozenset[int]:
    """Return the ids that end a text, from a configuration's one id, list of ids or None."""
    return frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
