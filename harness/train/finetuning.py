"""How a backbone learns further: by low-rank matrices, or by all of its weights.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. The product of the matrices is scaled by alpha / rank, as in the paper's
own library.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn

from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.errors import UsageError
from stridebench.harness.platform.extras import install_command


@dataclass(frozen=True)
class Tuning:
    """Rank and scale of the matrices. Rank 0: no matrices; all weights learn."""

    rank: int = 16
    alpha: int = 32


def with_low_rank(model: Any, tuning: Tuning, target_modules: str) -> Any:
    """A model whose weights are frozen and whose target modules have low-rank matrices.

    Raises:
        UsageError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UsageError(f"low-rank training needs peft: {install_command('train')}") from error
    config = LoraConfig(r=tuning.rank, lora_alpha=tuning.alpha, target_modules=target_modules)
    return get_peft_model(model, config)


def low_rank_of(model: nn.Module) -> dict[str, LowRank]:
    """The matrices of a model of `with_low_rank`, by the names of its linear layers; not scaled."""
    return {
        name: LowRank(layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    }


def merged(model: Any, tuning: Tuning) -> Any:
    """A copy of a model, with the products of its matrices added to its weights."""
    twin = copy.deepcopy(model)
    return twin.merge_and_unload() if tuning.rank else twin
