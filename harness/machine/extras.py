"""How the optional dependencies are installed."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    import torch


def typed(program: str) -> str:
    """Return the command to type for a program of this environment, such as ``stride``.

    Its name if the shell finds the program of this environment; else, as in an environment that is not activated, its
    path: ``.venv/bin/stride``.
    """
    own = Path(sys.executable).parent / program
    if not own.is_file():
        return program
    first = shutil.which(program)
    if first is not None and Path(first).absolute() == own.absolute():
        return program
    folder = Path.cwd()
    return shlex.quote(os.fspath(own.relative_to(folder)) if own.is_relative_to(folder) else os.fspath(own))


CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the packages: a work tree, or the site-packages that a wheel was installed to."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra: of the work tree in use or installed from, else of the package index."""
    folder = CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else _installed_from()
    if folder is None:
        return f"{typed('pip')} install 'stridebench[{extra}]'"
    return f"{typed('pip')} install '{'.' if Path.cwd() == folder else folder}[{extra}]'"


def _installed_from() -> Path | None:
    """Return the work tree that pip installed this copy from, if it is still there (PEP 610)."""
    for record in CHECKOUT.glob("stridebench-*.dist-info/direct_url.json"):
        try:
            url = urlsplit(json.loads(record.read_text(encoding="utf-8"))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        folder = Path(url2pathname(url.path))
        if url.scheme == "file" and (folder / "pyproject.toml").is_file():
            return folder
    return None


def optional(module: str, user: str, extra: str) -> Any:
    """Return a module that an extra brings.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{user} needs the extra: {install_command(extra)}") from error


# The compiled operators of torchvision may fail to load, for example with a CPU build of torch.
# Its import registers shape rules for two operators that the compiled library would have defined. Image transforms
# and pure-torch models need neither of them. Detection models do, and stay unusable.


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

    Nothing changes if torchvision's operators load. If they do not, the missing ones are
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
    import torch

    for library in sorted(package.glob("_C*.so")):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # torch has none
        except OSError:  # built for another torch or for CUDA: the case this module is for
            continue
        return True
    return False


@cache  # operators live as long as the library object that declared them
def _declare() -> torch.library.Library:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # as above
    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + signature)  # type: ignore[no-untyped-call]  # as above
    return library
