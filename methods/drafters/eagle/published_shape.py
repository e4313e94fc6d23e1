"""Shapes of published feature drafters, by their configurations and tensors; see `published` for their sources."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stridebench.harness.errors import WeightsError, WeightsWarning, listed
from stridebench.methods.drafters.eagle.shape import Shape

GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""Cells a side of LANTERN's LlamaGen models, by ``input_type``."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
READ = f"""{LAYER_IDS} draft_vocab_size eagle_config head_dim hidden_first hidden_size input_type intermediate_size
joined max_position_embeddings model_type mtp norm_before_residual norm_output num_attention_heads num_hidden_layers
num_key_value_heads rms_norm_eps rope_parameters rope_scaling rope_theta speculators_model_type target_hidden_size
transformer_layer_config vocab_size"""
"""Keys of a configuration that are read."""
USUAL: Mapping[str, Any] = {
    "additional_fc": False,
    "hidden_act": "silu",
    "layer_types": ["full_attention"],
    "parallel_draft_step": 1,
    "partial_rotary_factor": 1.0,
    "swin_norm": False,
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "use_sliding_window": False,
}
"""Keys that change the computation, with the one value that is computed."""
WITHOUT_EFFECT = """_name_or_path architectures attention_bias attention_dropout auto_map bos_token_id dtype
embed_requires_grad eos_token_id experts_per_token fc_norm has_no_defaults_at_init initializer_range is_decoder
max_window_layers mlp_bias next_layer_regular norm_before_fc num_local_experts pad_token_id
parallel_draft_heads_num_layers pretraining_tp reuse_target_lm_head sliding_window speculators_config
speculators_version target_model_type tie_word_embeddings torch_dtype transformers_version use_cache
use_input_layernorm_in_first_layer vocabulary_map vq_config"""
"""Keys that change nothing: ids and types, settings of training, and what the tensors show."""


def layers_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the target's layers that a configuration names, 0 for its embedding; () if it names none.

    speculators and vLLM count as we do. SpecForge and ModelOpt, whose ids lie in ``eagle_config``, count the decoder's
    layers from 0, as SGLang reads them.
    """
    nested = (config.get("eagle_config") or {}).get(LAYER_IDS) or ()
    return tuple(int(layer) + 1 for layer in nested) or tuple(int(layer) for layer in config.get(LAYER_IDS) or ())


def check_keys(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse values that change the computation in a way that is not computed, and warn of keys that are not known.

    Raises:
        WeightsError: a key of ``USUAL`` has another value.
    """
    stated = {**config, **(config.get("transformer_layer_config") or {}), **(config.get("eagle_config") or {})}
    stated = {key: value for key, value in stated.items() if value is not None}
    stated |= {"layer_types": stated.get("layer_types", USUAL["layer_types"])[:1]}  # of the one layer
    for key, usual in USUAL.items():
        if stated.get(key, usual) != usual:
            raise WeightsError(
                f"{folder}/config.json has {key}: {stated[key]!r}, and only drafters with {usual!r} are computed here"
            )
    known = {*f"{READ} {WITHOUT_EFFECT}".split(), *USUAL}
    if unknown := sorted(stated.keys() - known):
        warnings.warn(
            f"{folder}/config.json has keys that are not read: {listed(unknown)}. If one of them changes what the "
            f"drafter computes, it drafts worse here than it should",
            WeightsWarning,
            stacklevel=2,
        )


def shape_of(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], eagle3: bool) -> Shape:
    """The shape that a published configuration and its tensors state.

    Raises:
        WeightsError: the drafter has several layers, or a head without a norm.
    """
    if int(config.get("num_hidden_layers", 1)) != 1:
        raise WeightsError(f"{folder} has {config['num_hidden_layers']} layers; drafters of one layer are read")
    if config.get("norm_output") is False and "speculators_model_type" not in config:
        raise WeightsError(f"{folder} has norm_output: false, whose head reads rows without a norm; none is read")
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    norm = next((value for key, value in state.items() if key.endswith("q_norm.weight")), None)
    layers = layers_of(config)
    rates, sharpness = _rates(config, width, heads)
    theta = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
    embed = state.get("embed_tokens.weight")
    return Shape(
        "eagle3" if eagle3 else "eagle1",
        width,
        heads,
        int(config.get("num_key_value_heads") or heads),
        int(config["intermediate_size"]),
        taps=(len(layers) or 3) if eagle3 else 1,
        kept=int(config.get("draft_vocab_size") or config["vocab_size"]) if eagle3 else 0,
        branches=2,
        theta=float(theta),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        head_width=int(config.get("head_dim") or 0),
        target=int(config.get("target_hidden_size") or 0),
        vocabulary=0 if embed is None else len(embed),
        layers=layers,
        joined=bool(config.get("joined", True)),
        joined_bias="fc.bias" in state,
        qkv_bias=any(key.endswith("q_proj.bias") for key in state),
        out_bias=any(key.endswith("o_proj.bias") for key in state),
        entry_norm=not eagle3 and any(key.endswith("input_layernorm.weight") for key in state),
        head_norm="" if norm is None else "rms" if norm.ndim == 1 else "whole",
        tap_norm="each" if "fc_norm.0.weight" in state else "all" if "input_norm.weight" in state else "",
        normed_residual=bool(config.get("norm_before_residual", False)),
        pair_norm="mtp" in config,
        normed_output="mtp" in config
        or "joined" in config
        or ("speculators_model_type" in config and bool(config.get("norm_output", False))),
        rates=rates,
        sharpness=sharpness,
        side=GRIDS[config["input_type"]] if "input_type" in config else 0,
    )


def _rates(config: Mapping[str, Any], width: int, heads: int) -> tuple[tuple[float, ...], float]:
    """Rotation a position for each pair, and the factor of both; nothing where the base alone says it."""
    rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return (), 1.0
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    rope = {key: value for key, value in rope.items() if key != "type"} | {"rope_type": kind, "rope_theta": theta}
    table = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=width,
            num_attention_heads=heads,
            head_dim=int(config.get("head_dim") or width // heads),
            max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
            rope_parameters=rope,
        )
    )
    return tuple(table.inv_freq.tolist()), float(table.attention_scaling)
