"""Products of weights in 4 and 8 bits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from stridebench.harness.errors import UsageError, WeightsWarning
from stridebench.harness.kernels import packed_linear, quantized_linear
from stridebench.harness.kernels.quantized_linear import Products

LARGEST_ERROR = {"int8": 1 / 127, "int4": 1 / 15, "nf4": 0.16}
"""Of an entry, half a step and the rounding of factors together, as a share of the largest entry times two."""


def weights(rows: int = 93, width: int = 64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))


def entries(weight: Tensor, name: str) -> Tensor:
    """The rounded weights: the product with the unit vectors."""
    return Products("model", name)(weight)(torch.eye(weight.shape[1], dtype=weight.dtype)).T


@pytest.mark.parametrize("name", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_the_same_in_every_type(name: str, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        entries(weights().to(dtype), name).float(), entries(weights().to(dtype).float(), name), rtol=8e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_product_is_that_of_the_rounded_weights(name: str, dtype: torch.dtype, rows: int) -> None:
    weight, bias = weights(), torch.randn(93, generator=torch.Generator().manual_seed(1))
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    out = Products("model", name)(weight.to(dtype), bias.to(dtype))(x)
    rounded = entries(weight, name)
    expected = x.double() @ rounded.double().T + bias.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.2 if dtype == torch.bfloat16 else 1e-4)
    assert 0 < (rounded - weight).abs().max() < LARGEST_ERROR[name] * 2 * weight.abs().max()


def test_nf4_has_the_values_of_qlora() -> None:
    """Each value of a row that holds all of them stays; between two, the nearer one is taken."""
    row = torch.tensor([*quantized_linear.NF4] * 4)[None]
    torch.testing.assert_close(entries(row, "nf4"), row.bfloat16().float(), rtol=0, atol=2e-3)
    moved = row.clone()
    moved[0, 8:10] = torch.tensor([0.1, 0.13])
    torch.testing.assert_close(
        entries(moved, "nf4")[0, 8:10], torch.tensor([quantized_linear.NF4[8], quantized_linear.NF4[9]])
    )


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_where_torch_has_no_kernel_a_matrix_is_unpacked_at_each_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same rounded weights."""
    rounded = entries(weights(), name)
    monkeypatch.setattr(quantized_linear, "_on_cpu", lambda weight: False)
    torch.testing.assert_close(entries(weights(), name), rounded)


def test_without_the_kernel_the_product_of_rounded_weights_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weights().bfloat16(), weights(3).bfloat16()
    for name in ("int8", "int4"):
        fast = Products("model", name)(weight)(x)
        with monkeypatch.context() as patch:
            patch.setattr(quantized_linear, "_computes", lambda weights, dtype, device: False)
            plain = Products("model", name)(weight)(x)
        torch.testing.assert_close(fast, plain, rtol=0, atol=0.3)


@pytest.mark.gpu
def test_a_product_on_a_gpu_is_that_of_the_rounded_weights() -> None:
    weight, x = weights(96, 128).bfloat16(), weights(5, 128).bfloat16()
    for name in ("int8", "int4"):
        on_gpu = Products("model", name)(weight.cuda())(x.cuda())
        torch.testing.assert_close(on_gpu.cpu(), Products("model", name)(weight)(x), rtol=0, atol=0.3)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_missing_kernel_is_said_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise NotImplementedError("no such kernel")

    quantized_linear._computes.cache_clear()
    quantized_linear._say_plain.cache_clear()
    monkeypatch.setattr(quantized_linear, "_packed_int4", missing)
    monkeypatch.setattr(torch, "_weight_int8pack_mm", missing)
    with pytest.warns(UserWarning, match=f"no working kernel for {name} weights on cpu") as said:
        for _ in range(2):
            Products("model", name)(weights().bfloat16())
    assert len(said) == 1
    quantized_linear._computes.cache_clear()


def test_rows_that_the_kernel_for_8_bits_would_read_past_the_end_of_take_the_plain_path_and_say_so_once() -> None:
    quantized_linear._say_plain.cache_clear()
    with pytest.warns(WeightsWarning, match="reads blocks of 16 entries, and a matrix has rows of 40") as said:
        for _ in range(2):
            product = Products("model", "int8")(weights(258, 40).bfloat16())
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = x.double() @ entries(weights(258, 40), "int8").double().T
    torch.testing.assert_close(product(x).double(), expected, rtol=0, atol=0.2)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("name", "weight", "says"),
    [
        ("int3", weights(), "model: weights is 'int3'; choose one of full, int8, int4, nf4"),
        ("int4", weights(32, 48), r"matrix of shape \(32, 48\) .* choose int8"),
        ("nf4", weights(32, 96), r"groups of 64 entries, .* choose int8"),
    ],
)
def test_the_error_of_a_format_that_cannot_be_names_the_reason(name: str, weight: Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Products("model", name)(weight)


# Products with packed weights.


@pytest.mark.parametrize("amx", [False, True])
def test_one_row_of_a_kept_fp32_weight_is_multiplied_in_the_plain_layout_with_amx_alone(
    amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor and not by a clock: two runs on one machine round alike."""
    monkeypatch.setattr(packed_linear, "_has_amx", lambda: amx)
    weight, x = torch.randn(300, 256), torch.randn(2, 256)
    plain = []

    def linear(*given: torch.Tensor | None) -> torch.Tensor:
        plain.append(len(given[0]))
        return torch.nn.functional.linear(*given)

    monkeypatch.setattr(packed_linear, "functional", SimpleNamespace(linear=linear))
    packed_linear._can_pack.cache_clear()
    for kept, dtype in ((True, torch.float32), (False, torch.float32), (True, torch.bfloat16)):
        product = packed_linear.product(weight.to(dtype), kept=kept)
        packs = packed_linear._can_pack(dtype)  # with AVX2 alone, bf16 is not packed
        plain.clear()
        outputs = [product(rows.to(dtype)).float() for rows in (x[:1], x)]
        assert plain == ([1, 2] if not packs else [1] if amx and kept and dtype == torch.float32 else [])
        torch.testing.assert_close(outputs[0], outputs[1][:1], rtol=0, atol=1e-4 if dtype == torch.float32 else 0.3)


def test_packed_products_equal_plain_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        weight = torch.randn(300, 256, generator=generator).to(dtype)
        bias = torch.randn(300, generator=generator).to(dtype)
        assert weight.numel() >= packed_linear.SMALL
        for rows in (1, 2, 33):
            x = torch.randn(rows, 256, generator=generator).to(dtype)
            products = packed_linear.product(weight, bias)(x).double()
            expected = x.double() @ weight.double().T + bias.double()
            scale = {torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float64: 1e-11}[dtype]
            torch.testing.assert_close(products, expected, rtol=0, atol=scale)
