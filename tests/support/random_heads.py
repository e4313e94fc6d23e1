"""Heads of random weights."""

from __future__ import annotations

from typing import Any

import torch

from stridebench.methods.drafters.heads.net import Config, Heads


def random_heads(seed: int = 0, **how: Any) -> Heads:
    """Heads over a vocabulary of seven."""
    torch.manual_seed(seed)
    heads = Heads(Config("toy", "abc", 4, **how), torch.randn(7, 4), torch.tensor([1, 4, 6]) if "kept" in how else None)
    for weight in heads.parameters():
        weight.data = torch.randn_like(weight).bfloat16().float()
    return heads.eval()
