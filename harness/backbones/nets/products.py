"""Matrix products with fixed weights, packed for the processor where it has a kernel for that.

Windows of a few rows are bound by reading weights. The general product of a CPU reads them through a layout
made for large matrices: packed once at load, the same product takes half the time for 1 to 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

ROWS = 8
"""Rows that the packed layout is chosen for; measured best, or level, from 1 to 256."""

Product = Callable[[Tensor, Tensor | None], Tensor]
"""(x [N, I], residual [N, O] or None) -> x W^T + bias + residual, [N, O]."""


def product(weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None) -> Product:
    """The product with these weights; a packed one keeps no reference to ``weight``."""
    if weight.device.type == "cpu" and _can_pack(weight.dtype):
        return _packed(weight, bias)

    def plain(x: Tensor, residual: Tensor | None) -> Tensor:
        out = F.linear(x, weight, bias)
        return out if residual is None else out.add_(residual)

    return plain


def _packed(weight: Tensor, bias: Tensor | None) -> Product:
    layout = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    alone = torch.ops.mkldnn._linear_pointwise.default
    added = torch.ops.mkldnn._linear_pointwise.binary

    def packed(x: Tensor, residual: Tensor | None) -> Tensor:
        out: Tensor
        if residual is None:
            out = alone(x, layout, bias, "none", [], None)
        else:
            out = added(x, residual, layout, bias, "add")
        return out

    return packed


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and processor have the kernel for this type, and it computes the product."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight = (torch.arange(32 * 32).reshape(32, 32) % 7).to(dtype)
    x, residual = weight[:2], weight[2:4]
    try:
        found = _packed(weight, None)(x, residual)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False  # this torch or processor lacks it; the plain product is always there
    return torch.equal(found, F.linear(x, weight) + residual)
