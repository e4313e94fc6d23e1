"""Language models of random weights, small enough to decode with in a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stridebench.harness.backbones.text.hf_causal import HFCausal

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny(
    model_type: str = "llama",
    forward: str = "fused",
    dtype: str = "fp64",
    config: Mapping[str, Any] | None = None,
    seed: int = 1,
    **params: Any,
) -> HFCausal:
    source = {"random": {"model_type": model_type, "config": {**SIZES, **(config or {})}, "seed": seed}}
    return HFCausal.load("tiny", {"source": source, "forward": forward, **params}, dtype, "cpu")
