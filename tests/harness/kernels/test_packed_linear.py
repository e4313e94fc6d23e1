"""Products with packed weights."""

from __future__ import annotations

import torch

from stridebench.harness.kernels import packed_linear


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
