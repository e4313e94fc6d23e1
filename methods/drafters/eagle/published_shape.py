"""Shapes of published feature drafters, by their configurations and tensors; see `published` for their sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters.eagle.shape import Shape

GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""Cells a side of LANTERN's LlamaGen models, by ``input_type``."""


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
    layers = config.get("eagle_aux_hidden_state_layer_ids") or ()
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
        layers=tuple(layers),
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
