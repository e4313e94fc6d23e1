"""Ids of a picture's cells, and the codes that they stand for."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.core.capabilities import Capabilities


def ids_of(capabilities: Capabilities, device: torch.device) -> Int[Tensor, " I"]:
    """Id of each code: the ids that a cell may take, or the whole vocabulary where the backbone names none."""
    grid = capabilities.grid
    allowed = range(capabilities.vocabulary) if grid is None or grid.ids is None else grid.ids
    return torch.tensor(list(allowed), device=device)


def codes_of(ids: Int[Tensor, " I"], tokens: Int[Tensor, "*grid"], vocabulary: int) -> Int[Tensor, "*grid"]:
    """The inverse of ``ids[codes]``; 0 for an id that is no code."""
    table = ids.new_zeros(vocabulary)
    table[ids] = torch.arange(len(ids), device=ids.device)
    return table[tokens]
