"""Low-rank adapters as peft writes them, tied to the weights that they were trained on.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. Axes: r rank, I in, O out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harness.core.backbone import Backbone
from harness.errors import WeightsError

PREFIX = "base_model.model."
"""Of peft's names."""
PLAIN = {"use_dora": False, "bias": "none", "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {}}
"""Settings that an adapter must have here, or leave out."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """What is added to a linear layer: ``up down x``, up being scaled already."""

    down: Float[Tensor, "r I"]
    up: Float[Tensor, "O r"]


Adapter = Mapping[str, LowRank]
"""By the names of the model's linear layers."""


def read(folder: Path, backbone: Backbone, dtype: torch.dtype) -> dict[str, LowRank]:
    """An adapter's folder: adapter_config.json and adapter_model.safetensors of peft, and config.json with its tie.

    Raises:
        WeightsError: it is damaged, was made for other weights, or is no plain LoRA.
    """
    try:
        tie, how = (json.loads((folder / name).read_text("utf-8")) for name in ("config.json", "adapter_config.json"))
        tensors = load_file(folder / "adapter_model.safetensors", device=backbone.device)
        made_for, name, rank, alpha = tie["fingerprint"], tie["backbone"], how["r"], how["lora_alpha"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(
            f"{folder}: no adapter can be read there ({error}); train it anew or copy it again"
        ) from error
    if made_for != backbone.fingerprint:
        raise WeightsError(
            f"the adapter was trained for {name} ({made_for[:12]}), and the target is {backbone.name} "
            f"({backbone.fingerprint[:12]}): train one for it with `stride train adapter`"
        )
    _check(folder, how)
    scale = alpha / (rank**0.5 if how.get("use_rslora") else rank)
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        layer, _, kind = key.removeprefix(PREFIX).rpartition(".lora_")
        pairs.setdefault(layer, {})[kind] = tensor.to(dtype)
    if not all(set(pair) == {"A.weight", "B.weight"} for pair in pairs.values()):
        raise WeightsError(
            f"{folder}: its tensors are not pairs of lora_A and lora_B; export it with peft's save_pretrained"
        )
    return {layer: LowRank(pair["A.weight"], pair["B.weight"] * scale) for layer, pair in pairs.items()}


def _check(folder: Path, how: Mapping[str, Any]) -> None:
    wrong = [key for key, value in PLAIN.items() if how.get(key) not in (value, None)]
    wrong += ["peft_type"] if how.get("peft_type") != "LORA" else []
    wrong += ["modules_to_save"] if how.get("modules_to_save") else []
    if wrong:
        raise WeightsError(
            f"{folder}: {wrong[0]} is {how.get(wrong[0])!r}; rows read plain LoRA alone: one rank, one alpha, no "
            f"biases, nothing saved whole"
        )
