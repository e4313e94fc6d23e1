"""Weight files whose matrices have 8 bits an entry. Methods and backbones read their tensors through this module.

A matrix W is stored as two tensors: ``W``, whole numbers from -127 to 127, and ``W.int8_scale``, one factor for each
row, or for each column if rows are short. W is their product. Vectors, small tensors and ids are stored as they are,
and a file without such matrices is read as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from stridebench.harness.errors import WeightsError

SCALE = ".int8_scale"
LARGEST = 127
SHORT = 64
"""Rows of fewer entries share the factors of their columns, since a factor takes the room of four entries."""
SMALL = 2048
"""Tensors of fewer entries are stored as they are: little room is gained."""


def read(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a file; those stored in 8 bits come back in fp32.

    Raises:
        WeightsError: codes and factors of a matrix do not belong together. OSError, SafetensorError: as safetensors.
    """
    stored = load_file(path, device=device)
    for key in stored:
        if key.endswith(SCALE) and key.removesuffix(SCALE) not in stored:
            raise _damaged(path, f"it holds {key} and not {key.removesuffix(SCALE)}")
    return {key: _unpacked(path, key, stored) for key in stored if not key.endswith(SCALE)}


def is_packed(path: Path) -> bool:
    """Whether there is such a file and it has matrices of 8 bits; only its header is read."""
    if not path.is_file():
        return False
    with safe_open(path, "pt") as file:
        names = file.keys()
    return any(name.endswith(SCALE) for name in names)


def _unpacked(path: Path, key: str, stored: Mapping[str, Tensor]) -> Tensor:
    codes, scale = stored[key], stored.get(key + SCALE)
    if codes.dtype != torch.int8 and scale is None:
        return codes
    if codes.dtype != torch.int8:
        raise _damaged(path, f"{key} has factors for 8 bits and is stored in {codes.dtype}")
    if scale is None:
        raise _damaged(path, f"{key} is stored in 8 bits and {key}{SCALE} is missing")
    if codes.ndim < 2 or scale.dtype != torch.float32 or scale.shape not in (_factors(codes, -1), _factors(codes, -2)):
        raise _damaged(
            path,
            f"{key}{SCALE} is {scale.dtype} of shape {tuple(scale.shape)}, and {key} of shape {tuple(codes.shape)} "
            f"needs one torch.float32 for each row or column",
        )
    if not bool(scale.isfinite().all()) or bool((scale < 0).any()) or bool((codes < -LARGEST).any()):
        raise _damaged(path, f"{key} has a factor that is negative or not finite, or a code below -{LARGEST}")
    return codes.float() * scale


def _factors(codes: Tensor, axis: int) -> torch.Size:
    """Return the shape of one factor for each row (axis -1) or column (axis -2)."""
    return torch.Size([*codes.shape[:-1], 1] if axis == -1 else [*codes.shape[:-2], 1, codes.shape[-1]])


def _damaged(path: Path, fault: str) -> WeightsError:
    return WeightsError(f"{path} is damaged: {fault}. Install the package again, or train these weights anew")


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return matrices as codes and factors, other tensors as they are."""
    packed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        packed[key] = tensor
        if tensor.is_floating_point() and tensor.ndim >= 2 and tensor.numel() >= SMALL:
            scale = tensor.float().abs().amax(-1 if tensor.shape[-1] >= SHORT else -2, keepdim=True) / LARGEST
            packed[key] = (tensor.float() / scale.clamp_min(1e-30)).round().to(torch.int8)
            packed[key + SCALE] = scale
    return packed


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write these tensors in 8 bits, which `read` reads."""
    write_unpacked(path, pack(tensors))


def write_unpacked(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write these tensors in their types."""
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes for the owner alone, and a package is for all
