"""Matrix products with fixed weights, packed for the processor if it has a kernel for that.

Windows of a few rows are bound by reading weights. The general product of a CPU reads them through a layout
made for large matrices: packed once at load, the same product takes half the time for 1 to 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

ROWS = 8
"""Rows that the packed layout is chosen for; measured best, or level, from 1 to 256."""
SMALL = 1 << 16
"""Weights below this many elements stay as they are: a packed call costs some microseconds more."""

Product = Callable[[Tensor], Tensor]
"""x [N, I] -> x W^T + bias [N, O], in a new tensor."""


def product(weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None, kept: bool = False) -> Product:
    """Return the product with these weights; a packed one keeps no reference to ``weight``.

    Args:
        kept: whether the caller keeps the weight anyway, as a model does its tied embedding. Then the plain layout
            costs no memory, and one row is multiplied in it if the processor does that faster. The choice depends on
            the processor and the type alone, and not on a clock, so that a run that is repeated has the same rounding.
    """
    if weight.device.type != "cpu" or weight.numel() < SMALL or not _can_pack(weight.dtype):
        return lambda x: functional.linear(x, weight, bias)
    packed = _packed(weight, bias)
    if not (kept and weight.dtype == torch.float32 and _has_amx()):
        return packed
    return lambda x: functional.linear(x, weight, bias) if len(x) == 1 else packed(x)


def _packed(weight: Tensor, bias: Tensor | None) -> Product:
    layout = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def packed(x: Tensor) -> Tensor:
        out: Tensor = multiply(x, layout, bias, "none", [], None)
        return out

    return packed


def _has_amx() -> bool:
    """Whether one row in fp32 is faster in the plain layout.

    Measured for a head of 49152 x 576: 8.4 ms plain and 14.2 ms packed on a Xeon with AMX, 34 and 28 ms on an AMD EPYC
    with AVX-512 and other work.
    """
    return bool(torch.cpu._is_amx_tile_supported())


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and processor have the kernel for this type, and it computes the product."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = (torch.arange(32 * 32).reshape(32, 32) % 5 % 3 - 1).to(dtype)  # sums are exact in any type
    try:
        product = _packed(weight, None)(weight[:2])
    except (RuntimeError, NotImplementedError, AttributeError):
        return False  # this torch or processor lacks it; the plain product is always there
    return torch.equal(product, functional.linear(weight[:2], weight))
