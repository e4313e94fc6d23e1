"""Matrix products with weights of 4 or 8 bits, by torch's kernels for CPUs; elsewhere with rounded weights.

A matrix is read in bf16 and rounded to whole numbers and factors in bf16, whatever type the model runs in. So a model
has the same weights in bf16, the type of the kernels, and in fp32, in which products are plain ones of rounded weights.
Rounding is to nearest, without data (RTN): 8 bits with a factor for each row, 4 bits with a factor and an offset for 32
entries of a row. NF4 has 16 quantiles of the normal distribution, scaled by the largest of 64 entries of a row
(Dettmers et al. 2023, QLoRA, arXiv:2305.14314, section 3). No kernel of torch multiplies it, so its product unpacks a
matrix at each use: it saves memory, but no time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.errors import UsageError, WeightsWarning
from stridebench.harness.kernels.packed_linear import Product
from stridebench.harness.kernels.packed_linear import product as plain_product

FORMATS = ("full", "int8", "int4", "nf4")
GROUP = 32
"""Entries of a row that share a factor and an offset in 4 bits."""
NF4_GROUP = 64
"""Entries of a row that share a factor in NF4."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Its values, as bitsandbytes has them (QLoRA, appendix E)."""
BLOCK = 16
"""Rows of a matrix come in blocks of this size in torch's kernel for 4 bits, and entries of a row in that for 8."""
MANY = 512
"""A pass of more rows unpacks a matrix of 8 bits, because the kernel takes as long for each row."""
MIDDLE = 8
"""The code of an entry that equals its group's offset, as torch's kernel has it."""


class Products:
    """Makes the products of a model's weights in one format.

    Args:
        weights: one of ``FORMATS``.

    Raises:
        UsageError: the format is unknown.
    """

    def __init__(self, name: str, weights: str) -> None:
        if weights not in FORMATS:
            raise UsageError(f"{name}: weights is {weights!r}; choose one of {', '.join(FORMATS)}")
        self.name, self.weights = name, weights

    def refuse(self, reason: str) -> None:
        """Raise UsageError with the reason why a model's products cannot be made here, unless the format is full."""
        if self.weights != "full":
            raise UsageError(f"{self.name}: weights: {self.weights} needs our forward, and {reason}; leave it out")

    def __call__(
        self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None, kept: bool = False
    ) -> Product:
        """Return the product with these weights, rounded to the format; ``kept`` is as in `packed_linear.product`.

        Raises:
            UsageError: rows do not divide into groups.
        """
        if self.weights == "full":
            return plain_product(weight, bias, kept)
        group = {"int4": GROUP, "nf4": NF4_GROUP}.get(self.weights, 1)
        if weight.shape[1] % group:
            raise UsageError(
                f"{self.name}: weights: {self.weights} has groups of {group} entries, and a matrix of shape "
                f"{tuple(weight.shape)} has rows that do not divide into them; choose int8"
            )
        return {"int8": _int8, "int4": _int4, "nf4": _nf4}[self.weights](weight, bias)


FULL = Products("", "full")
"""Products of the weights as they are."""


def _int8(weight: Tensor, bias: Tensor | None) -> Product:
    entries = _bf16(weight)
    scale = _bf16(entries.abs().amax(1) / 127).clamp_min(1e-30)
    codes = (entries / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    if not _on_cpu(weight):
        return _unpacking(lambda: (codes.float() * scale[:, None]).to(weight.dtype), bias)
    if not _computes("int8", weight.dtype, weight.device.type) or not _divides(weight.shape[1]):
        return plain_product((codes.float() * scale[:, None]).to(weight.dtype), bias)
    factors, multiply = scale.to(weight.dtype), torch._weight_int8pack_mm

    def product(x: Tensor) -> Tensor:
        if len(x) > MANY:
            return functional.linear(x, codes.to(x.dtype).mul_(factors[:, None]), bias)
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
    dtype = weight.dtype
    computes = _computes("int4", dtype, weight.device.type)
    if not _on_cpu(weight) and not computes:
        halves = _halves(codes.view(rows, width))
        spread = (scale[..., None], offset[..., None])

        def unpack() -> Tensor:
            whole = _whole(halves).view(rows, -1, GROUP)
            return ((whole - MIDDLE) * spread[0] + spread[1]).view(rows, width).to(dtype)

        return _unpacking(unpack, bias)
    if not computes:
        rounded = (codes - MIDDLE) * scale[..., None] + offset[..., None]
        return plain_product(rounded.view(rows, width).to(dtype), bias)
    more = (0, 0, 0, -rows % BLOCK)
    whole = functional.pad(codes.view(rows, width).to(torch.int32), more)
    packed, multiply = _packed_int4(whole)
    factors = functional.pad(torch.stack([scale, offset]), more).permute(2, 1, 0).contiguous().to(weight.dtype)

    def product(x: Tensor) -> Tensor:
        if len(x) > 2 * width:  # the kernel's product with the unit vectors are the weights
            unpacked = multiply(torch.eye(width, dtype=x.dtype, device=x.device), packed, GROUP, factors)
            return functional.linear(x, unpacked[:, :rows].T, bias)
        out: Tensor = multiply(x.contiguous(), packed, GROUP, factors)
        out = out if len(whole) == rows else out[:, :rows].contiguous()
        return out if bias is None else out.add_(bias)

    return product


def _nf4(weight: Tensor, bias: Tensor | None) -> Product:
    rows, width, dtype = *weight.shape, weight.dtype
    values = torch.tensor(NF4, device=weight.device)
    groups = _bf16(weight).view(rows, width // NF4_GROUP, NF4_GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    bounds = (values[1:] + values[:-1]) / 2
    halves = _halves(torch.bucketize(groups / scale, bounds).view(rows, width))

    def unpack() -> Tensor:
        entries = values[_whole(halves).long()].view(rows, -1, NF4_GROUP) * scale
        return entries.view(rows, width).to(dtype)

    return _unpacking(unpack, bias)


def _halves(codes: Tensor) -> Tensor:
    """Return codes of 4 bits, two a byte."""
    codes = codes.to(torch.uint8)
    return codes[:, ::2] * 16 + codes[:, 1::2]


def _whole(halves: Tensor) -> Tensor:
    """Return the codes of `_halves`, as numbers in fp32."""
    return torch.stack([halves // 16, halves % 16], -1).flatten(1).float()


def _unpacking(unpack: Callable[[], Tensor], bias: Tensor | None) -> Product:
    """Return a product that unpacks its weights at each use."""
    return lambda x: functional.linear(x, unpack(), bias)


def _on_cpu(weight: Tensor) -> bool:
    """Whether torch's kernels, which are for CPUs, can be taken. Elsewhere a matrix is unpacked at each use."""
    return weight.device.type == "cpu"


def _packed_int4(codes: Int[Tensor, "O I"]) -> tuple[Tensor, Callable[..., Tensor]]:
    """Return codes of 0 to 15 in the layout of the device's kernel, and that kernel."""
    if codes.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), torch.ops.aten._weight_int4pack_mm_for_cpu
    width = codes.shape[1]
    tiles = next(count for count in (8, 4, 2) if width % (16 * count) == 0 or count == 2)
    two = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(two, tiles), torch.ops.aten._weight_int4pack_mm


def _bf16(entries: Tensor) -> Tensor:
    """Round entries in fp32 to those that bf16 holds."""
    return entries.bfloat16().float()


def _divides(width: int) -> bool:
    """Whether torch's kernel for 8 bits reads rows of this width; of others it reads past the end."""
    if width % BLOCK:
        _say_plain(
            f"torch's kernel for int8 weights reads blocks of {BLOCK} entries, and a matrix has rows of {width}: such "
            f"a matrix is rounded and multiplied as a plain one, which gains no speed"
        )
    return width % BLOCK == 0


@cache
def _say_plain(reason: str) -> None:
    """Warn of a path without a kernel, once a process."""
    warnings.warn(reason, WeightsWarning, stacklevel=2)


@cache
def _computes(weights: str, dtype: torch.dtype, device: str) -> bool:
    """Whether this build and device have the kernel, it is fast in this type, and it computes the product.

    In fp32 and fp16 the kernels are slower than a plain product, or missing.
    """
    if dtype != torch.bfloat16:
        return False
    codes: Int[Tensor, "32 32"] = torch.arange(32 * 32, device=device).reshape(32, 32) % 5 % 3 - 1  # sums are exact
    x, one = codes[:2].to(dtype), torch.ones(32, dtype=dtype, device=device)
    try:
        if weights == "int8":
            out = torch._weight_int8pack_mm(x, codes.to(torch.int8), one)
        else:
            packed, multiply = _packed_int4((codes + MIDDLE).to(torch.int32))
            out = multiply(x, packed, 32, torch.stack([one, torch.zeros_like(one)], -1)[None])
        computes = torch.equal(out, x @ codes.to(dtype).T)
    except (RuntimeError, NotImplementedError, AttributeError):
        computes = False
    if not computes:  # the product of the rounded weights is always there
        _say_plain(
            f"this torch has no working kernel for {weights} weights on {device}: the rounded weights are multiplied "
            f"in {str(dtype).removeprefix('torch.')}, which gains no speed"
        )
    return computes
