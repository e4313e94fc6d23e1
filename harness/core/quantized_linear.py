"""Matrix products with weights of 4 or 8 bits, by torch's own kernels for CPUs.

A matrix is read in bf16 and rounded to whole numbers and factors in bf16, whatever type the model runs in. So a model
has the same weights in bf16, where the kernels compute, and in fp32, where products are plain ones of rounded weights.
Rounding is to nearest, without data (RTN): 8 bits with a factor for each row, 4 bits with a factor and an offset for 32
entries of a row.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from harness.core.packed_linear import Product
from harness.core.packed_linear import product as plain_product
from harness.errors import UsageError

FORMATS = ("full", "int8", "int4")
GROUP = 32
"""Entries of a row that share a factor and an offset in 4 bits."""
BLOCK = 16
"""Rows of a matrix come in blocks of this size in torch's kernel for 4 bits."""
MIDDLE = 8
"""The code of an entry that equals its group's offset, as torch's kernel has it."""


class Products:
    """Makes the products of a model's weights in one format.

    Args:
        weights: one of ``FORMATS``.

    Raises:
        UsageError: there is no such format.
    """

    def __init__(self, name: str, weights: str) -> None:
        if weights not in FORMATS:
            raise UsageError(f"{name}: weights is {weights!r}; choose one of {', '.join(FORMATS)}")
        self.name, self.weights = name, weights

    def refuse(self, reason: str) -> None:
        """Say why a model's products cannot be made here.

        Raises:
            UsageError: the format is not full.
        """
        if self.weights != "full":
            raise UsageError(f"{self.name}: weights: {self.weights} needs our own forward, and {reason}; leave it out")

    def __call__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None) -> Product:
        """The product with these weights, rounded to the format.

        Raises:
            UsageError: this device has no kernel for the format, or rows do not divide into groups.
        """
        if self.weights == "full":
            return plain_product(weight, bias)
        if weight.device.type != "cpu":
            raise UsageError(f"{self.name}: weights: {self.weights} is for CPUs; on {weight.device} leave it out")
        if self.weights == "int4" and weight.shape[1] % GROUP:
            raise UsageError(
                f"{self.name}: weights: int4 has groups of {GROUP} entries, and a matrix of shape "
                f"{tuple(weight.shape)} has rows that do not divide into them; choose int8"
            )
        return _int8(weight, bias) if self.weights == "int8" else _int4(weight, bias)


FULL = Products("", "full")
"""Products of the weights as they are."""


def _int8(weight: Tensor, bias: Tensor | None) -> Product:
    entries = _bf16(weight)
    scale = _bf16(entries.abs().amax(1) / 127).clamp_min(1e-30)
    codes = (entries / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    if not _computes("int8", weight.dtype):
        return plain_product((codes.float() * scale[:, None]).to(weight.dtype), bias)
    factors, multiply = scale.to(weight.dtype), torch._weight_int8pack_mm

    def product(x: Tensor) -> Tensor:
        out: Tensor = multiply(x, codes, factors)
        return out if bias is None else out.add_(bias)

    return product


def _int4(weight: Tensor, bias: Tensor | None) -> Product:
    rows, width = weight.shape
    groups = _bf16(weight).view(rows, width // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = _bf16(((high - low) / 15).clamp_min(1e-30))
    offset = _bf16(low + MIDDLE * scale)
    codes = ((groups - offset[..., None]) / scale[..., None] + MIDDLE).round().clamp(0, 15)
    if not _computes("int4", weight.dtype):
        rounded = (codes - MIDDLE) * scale[..., None] + offset[..., None]
        return plain_product(rounded.view(rows, width).to(weight.dtype), bias)
    more = (0, 0, 0, -rows % BLOCK)
    whole = functional.pad(codes.view(rows, width).to(torch.int32), more)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    factors = functional.pad(torch.stack([scale, offset]), more).permute(2, 1, 0).contiguous().to(weight.dtype)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu

    def product(x: Tensor) -> Tensor:
        out: Tensor = multiply(x.contiguous(), packed, GROUP, factors)
        out = out if len(whole) == rows else out[:, :rows].contiguous()
        return out if bias is None else out.add_(bias)

    return product


def _bf16(entries: Tensor) -> Tensor:
    """Entries in fp32 that bf16 holds."""
    return entries.bfloat16().float()


@cache
def _computes(weights: str, dtype: torch.dtype) -> bool:
    """Whether this build has the kernel, it is fast in this type, and it computes the product.

    In fp32 and fp16 the kernels of a CPU are slower than a plain product.
    """
    if dtype != torch.bfloat16:
        return False
    codes: Int[Tensor, "32 32"] = torch.arange(32 * 32).reshape(32, 32) % 5 % 3 - 1  # sums are exact in bf16
    x, one = codes[:2].to(dtype), torch.ones(32, dtype=dtype)
    try:
        if weights == "int8":
            out = torch._weight_int8pack_mm(x, codes.to(torch.int8), one)
        else:
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu((codes + MIDDLE).to(torch.int32), 1)
            factors = torch.stack([one, torch.zeros_like(one)], -1)[None]
            out = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, factors)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False  # this torch or processor lacks it; the product of the rounded weights is always there
    return torch.equal(out, x @ codes.to(dtype).T)
