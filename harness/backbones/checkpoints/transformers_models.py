"""Reading models of transformers from a ready folder, and rejecting those that this harness cannot serve."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from harness.core.capabilities import Capabilities, Requirement
from harness.errors import WeightsError
from harness.platform.folders import remedy
from harness.platform.quiet import quiet

ATTENDING = {"full_attention", "sliding_attention"}
"""Kinds of layers whose whole state is a cache of keys and values."""


def read_config(name: str, folder: Path) -> Any:
    """The configuration of a folder.

    Raises:
        WeightsError: transformers does not know it, or this harness cannot serve it.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise WeightsError(
            f"{name}: {folder} has no configuration that transformers knows ({error}). hf_causal serves "
            f"causal language models of transformers"
        ) from error
    refuse(name, config)
    return config


def refuse(name: str, config: Any) -> None:
    """Refuse a model that cannot be rolled back or is no causal language model.

    Raises:
        WeightsError: it is such a model.
    """
    kind = config.model_type
    if config.is_encoder_decoder:
        raise WeightsError(
            f"{name}: {kind} is an encoder-decoder; hf_causal serves decoder-only language models "
            f"(Llama, Qwen, Mistral, Gemma, GPT-2 and the like)"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise WeightsError(f"{name}: transformers has no causal language model of type {kind}")
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    other = set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENDING
    if getattr(model, "_is_stateful", False) or other:
        raise WeightsError(
            f"{name}: {kind} keeps a running state ({', '.join(sorted(other)) or 'recurrent layers'}), which "
            f"cannot be rolled back to before a rejected draft; use a model whose layers all attend to a cache"
        )


def read_model(name: str, folder: Path, config: Any, attn: str, dtype: torch.dtype) -> Any:
    """The model of a folder, every tensor of it read from there.

    Raises:
        WeightsError: a file is damaged, or tensors are missing or of another shape.
    """
    return read_whole(name, folder, AutoModelForCausalLM, config=config, dtype=dtype, attn_implementation=attn)


def read_whole(name: str, folder: Path, kind: Any, unused: tuple[str, ...] = (), **options: Any) -> Any:
    """A model of a class of transformers, every tensor of it read from a folder.

    Args:
        name: of the backbone, for messages.
        folder: of transformers.
        kind: the class.
        unused: beginnings of names of tensors that may be missing, since they are not used.
        options: of its loader.

    Raises:
        WeightsError: a file is damaged, or tensors are missing or of another shape.
    """
    try:
        with quiet():
            model, report = kind.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, **options
            )
    except (ValueError, KeyError, OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise WeightsError(f"{name}: the weights in {folder} cannot be loaded ({error}). {remedy(folder)}") from error
    keys = map(str, (*report["missing_keys"], *report["mismatched_keys"]))
    wrong = sorted(key for key in keys if not key.startswith(unused))
    if wrong:
        raise WeightsError(
            f"{name}: {folder} lacks {len(wrong)} tensors of the model or has them in another shape, such as "
            f"{wrong[0]}; transformers would make them up. {remedy(folder)}"
        )
    return model


def make_random(name: str, fields: Mapping[str, Any], attn: str) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were.

    Raises:
        WeightsError: no such architecture, or one that this harness cannot serve.
    """
    config = configure(name, fields)
    refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attn)


def configure(name: str, fields: Mapping[str, Any]) -> Any:
    """The configuration of a random model. WeightsError: transformers knows no such architecture."""
    try:
        return AutoConfig.for_model(fields["model_type"], **fields["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{name}: transformers cannot configure {fields['model_type']} ({error})") from error


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None where it has no file of one."""
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def capabilities(model: Any, meets: frozenset[Requirement]) -> Capabilities:
    """The capabilities of a model. The context ends at the sliding window, because no entry is ever dropped."""
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    if "sliding_attention" in (getattr(config, "layer_types", None) or ("sliding_attention",)):
        limits.append(getattr(config, "sliding_window", None))
    lengths = [int(limit) for limit in limits if limit]
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    return Capabilities(
        model.get_output_embeddings().weight.shape[0],
        min(lengths, default=2048),
        end_ids(eos),
        meets,
        layers=int(config.num_hidden_layers) if Requirement.HIDDEN in meets else 0,
        width=int(config.hidden_size),
    )


def end_ids(eos: Any) -> frozenset[int]:
    """Ids that end a text, from a configuration's one id, list of ids or None."""
    return frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
