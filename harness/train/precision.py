"""The type of matrix products in trainings: bf16 where the CPU multiplies it, else fp32.

A CPU that does not emulates such products: 1.2 against 63 GFLOP/s in fp32 on one core of an AMD EPYC
with AVX2.
"""

from __future__ import annotations

import torch

from stridebench.harness.platform.arithmetic import multiplies_bf16

NATIVE_BF16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and multiplies_bf16()
PRODUCTS = torch.bfloat16 if NATIVE_BF16 else torch.float32


def autocast(enabled: bool = True, device: str = "cpu") -> torch.autocast:
    """Products of a training in ``PRODUCTS``, on a GPU in bf16; ``enabled``: whether it is one."""
    return torch.autocast(device, torch.bfloat16, enabled=enabled and (NATIVE_BF16 or device != "cpu"))
