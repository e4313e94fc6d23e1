"""Makes torchvision importable where its compiled operators cannot be loaded, as beside a CPU build of torch.

Its import registers shape rules for two operators that the compiled library would have defined. Image
transforms and pure-torch models need neither of them. Detection models do, and stay unusable.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from stridebench.harness.errors import UsageError
from stridebench.harness.platform.extras import install_command

OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def prepare() -> None:
    """Make ``import torchvision`` work if it is installed: transformers imports it then."""
    if find_spec("torchvision") is not None:
        ensure()


def ensure() -> None:
    """Make ``import torchvision`` work; to be called before anything that imports it. Repeating it is free.

    Nothing changes where torchvision's own operators load. Where they do not, the missing ones are
    declared without a kernel, so that calling one raises NotImplementedError.

    Raises:
        UsageError: torchvision is not installed.
    """
    spec = find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"torchvision is not installed. Install the image extra: {install_command('image')}")
    if not _own_operators(Path(spec.submodule_search_locations[0])):
        _declare()


def _own_operators(package: Path) -> bool:
    for library in sorted(package.glob("_C*.so")):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # torch has none
        except OSError:  # built for another torch or for CUDA: the case this module is for
            continue
        return True
    return False


@cache  # operators live as long as the library object that declared them
def _declare() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # as above
    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + signature)  # type: ignore[no-untyped-call]  # as above
    return library
