"""What a law rests on: the files of our packages that its modules import, and the files that those import."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

import stridebench.harness
from stridebench.harness.proof.cases import presets_names

TICK_S = 0.1
"""Clocks of file systems may lag behind by less."""
PACKAGES = ("stridebench.harness", "stridebench.methods")
"""Whose files are read. Laws of methods of other packages are not kept: what those read is not known."""
ALWAYS = (
    "stridebench.harness.proof.distance",
    "stridebench.harness.proof.mutants",
    "stridebench.methods.masked_diffusion",
)
"""The enumeration with its models, and the reference of masked models."""


@dataclass(frozen=True)
class Source:
    """A module of ours.

    Args:
        imports: names that may be modules.
        functions: qualified names of the functions that it defines, two levels deep.
    """

    path: Path
    digest: str
    imports: frozenset[str]
    functions: tuple[str, ...]


def rests_on(modules: Iterable[str]) -> dict[str, Source]:
    """The modules of our packages that these import, at whatever depth and wherever in a file, with themselves."""
    sources: dict[str, Source] = {}
    waiting = [*modules, *ALWAYS]
    while waiting:
        name = waiting.pop()
        source = None if name in sources else _source(name)
        if source is not None:
            sources[name] = source
            waiting += source.imports
    return sources


@cache
def digest(modules: tuple[str, ...]) -> str | None:
    """Of the files that laws of these modules rest on, of the libraries and of the processor.

    None: a module is not ours, a function of these files was replaced in this process, or a file was written after
    this process had begun to read them.
    """
    if not all(f"{module}.".startswith(tuple(f"{name}." for name in PACKAGES)) for module in modules):
        return None
    sources = rests_on(modules)
    if edited(modules) or not all(_as_written(name, source) for name, source in sources.items()):
        return None
    facts = [platform.python_version(), torch.__version__, platform.machine(), *presets_names()]
    facts.append(torch.backends.cpu.get_cpu_capability())
    facts += [f"{name} {source.digest}" for name, source in sorted(sources.items())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def edited(modules: Iterable[str]) -> bool:
    """Whether a file of what these rest on was written, moved or removed since this process began to read them."""
    return any(not _as_read(source.path) for source in rests_on(modules).values())


def _as_read(path: Path) -> bool:
    try:
        return path.stat().st_ctime < stridebench.harness.IMPORTED - TICK_S
    except OSError:
        return False


@cache
def _source(module: str) -> Source | None:
    """None: no module of ours has that name."""
    first, second, *rest = [*module.split("."), ""]
    if f"{first}.{second}" not in PACKAGES:
        return None
    home = Path(next(iter(importlib.import_module(f"{first}.{second}").__path__))).joinpath(*rest[:-1])
    is_package = (home / "__init__.py").is_file()
    path = home / "__init__.py" if is_package else home.with_suffix(".py")
    if not path.is_file():
        return None
    data = path.read_bytes()
    tree = ast.parse(data)
    package = module if is_package else module.rpartition(".")[0]
    imports = frozenset(prefix for name in _imported(tree, package) for prefix in _prefixes(name))
    return Source(path, hashlib.sha256(data).hexdigest(), imports, tuple(_functions(tree)))


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _prefixes(name: str) -> list[str]:
    """The packages above a module, whose ``__init__`` runs too, and the module."""
    words = name.split(".")
    ours = ".".join(words[:2]) in PACKAGES
    return [".".join(words[:end]) for end in range(2, len(words) + 1)] if ours else []


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef))


def _as_written(name: str, source: Source) -> bool:
    """Whether the functions of a module are still those of its file; a plugin or a test may have put others there."""
    module = sys.modules.get(name)
    return module is None or all(_is_from(module, function, source.path) for function in source.functions)


def _is_from(module: Any, name: str, path: Path) -> bool:
    thing: Any = module
    with suppress(AttributeError):  # a name that the module deletes, or that is defined under a condition
        for word in name.split("."):
            thing = inspect.getattr_static(thing, word)
        thing = getattr(thing, "fget", None) or getattr(thing, "func", None) or getattr(thing, "__func__", thing)
        thing = inspect.unwrap(thing)
        if isinstance(thing, FunctionType):
            return Path(thing.__code__.co_filename).resolve() == path.resolve()
    return True
