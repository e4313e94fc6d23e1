"""Products of weights in 4 and 8 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.core import quantized_linear
from harness.core.quantized_linear import Products
from harness.errors import UsageError

LARGEST_ERROR = {"int8": 1 / 127, "int4": 1 / 15}
"""Of an entry, half a step and the rounding of factors together, as a share of the largest entry times two."""


def weights(rows: int = 93, width: int = 64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))


def entries(weight: Tensor, name: str) -> Tensor:
    """The rounded weights: the product with the unit vectors."""
    return Products("model", name)(weight)(torch.eye(weight.shape[1], dtype=weight.dtype)).T


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_the_same_in_every_type(name: str, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        entries(weights().to(dtype), name).float(), entries(weights().to(dtype).float(), name), rtol=8e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_product_is_that_of_the_rounded_weights(name: str, dtype: torch.dtype, rows: int) -> None:
    weight, bias = weights(), torch.randn(93, generator=torch.Generator().manual_seed(1))
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = Products("model", name)(weight.to(dtype), bias.to(dtype))(x)
    rounded = entries(weight, name)
    expected = x.double() @ rounded.double().T + bias.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.2 if dtype == torch.bfloat16 else 1e-4)
    assert 0 < (rounded - weight).abs().max() < LARGEST_ERROR[name] * 2 * weight.abs().max()


def test_a_row_of_zeros_stays_zero() -> None:
    for name in ("int8", "int4"):
        assert not entries(torch.zeros(32, 32), name).any()


def test_without_the_kernel_the_product_of_rounded_weights_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weights().bfloat16(), weights(3).bfloat16()
    for name in ("int8", "int4"):
        fast = Products("model", name)(weight)(x)
        with monkeypatch.context() as patch:
            patch.setattr(quantized_linear, "_computes", lambda weights, dtype: False)
            plain = Products("model", name)(weight)(x)
        torch.testing.assert_close(fast, plain, rtol=0, atol=0.3)


@pytest.mark.parametrize(
    ("name", "weight", "says"),
    [
        ("int3", weights(), "model: weights is 'int3'; choose one of full, int8, int4"),
        ("int4", weights(32, 48), r"matrix of shape \(32, 48\) .* choose int8"),
        ("int8", torch.empty(32, 32, device="meta"), "is for CPUs; on meta leave it out"),
    ],
)
def test_the_error_of_a_format_that_cannot_be_names_the_reason(name: str, weight: Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Products("model", name)(weight)
