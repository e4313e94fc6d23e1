"""Stand-ins for heavy libraries, so that verbs that only list things start at once.

`stride list` and `stride run --dry-run` read what methods, tasks and adapters say of themselves: class attributes and
parameters. They compute nothing. Importing torch, transformers and pandas for that takes seconds, so these verbs
import stand-ins of the same names. A stand-in serves annotations, base classes and decorators. Any other
use raises `StandInUsedError`, and the command line starts the verb again with the real libraries.

The verbs that decode, train or report never see a stand-in.
"""

from __future__ import annotations

import os
import sys
from abc import ABCMeta
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import FunctionType, ModuleType
from typing import Any, NoReturn

LIBRARIES = frozenset(
    {"gguf", "jaxtyping", "matplotlib", "pandas", "pyarrow", "safetensors", "scipy", "torch", "transformers"}
)
"""Libraries that methods, tasks and adapters import and that take long to import."""
DECORATORS = frozenset({"torch.inference_mode", "torch.no_grad"})
"""Their functions that a decorator may call while a module is imported."""
GROUPS = ("stridebench.methods", "stridebench.tasks", "stridebench.backbones")
"""Groups of entry points of other packages."""
OFF = "STRIDE_REAL_LIBRARIES"
"""The environment variable that switches stand-ins off."""


class StandInUsedError(RuntimeError):
    """A stand-in was computed with; the real library is needed."""


class _Kind(ABCMeta):
    """The class of stand-ins: every name of a library is a class of this kind."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{_name(cls)}.{name}")

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _name(cls) not in DECORATORS:
            _refuse(cls)
        return args[0] if args and isinstance(args[0], FunctionType) else lambda function: function

    def __iter__(cls) -> NoReturn:
        _refuse(cls)

    def __bool__(cls) -> NoReturn:
        _refuse(cls)

    def __repr__(cls) -> NoReturn:
        _refuse(cls)

    def __instancecheck__(cls, instance: object) -> NoReturn:
        _refuse(cls)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _refuse(kind: type) -> NoReturn:
    raise StandInUsedError(f"{_name(kind)} belongs to a library that was not imported")


def stand_in(name: str) -> Any:
    """The stand-in of a dotted name."""
    module, _, attribute = name.partition(".")
    return _Kind(attribute, (), {"__module__": module})


class _Library(ModuleType):
    """A library, or a module of one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        heavy = fullname.partition(".")[0] in LIBRARIES
        return ModuleSpec(fullname, self, is_package=True) if heavy else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def refuse(library: str) -> None:
    """For code that is about to compute with a library and would take a stand-in's error for one of its input.

    Raises:
        StandInUsedError: this process has a stand-in of it.
    """
    if installed():
        raise StandInUsedError(f"{library} was not imported")


def installed() -> bool:
    """Whether this process imports stand-ins."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install() -> None:
    """Import stand-ins from now on in this process.

    Nothing changes where ``OFF`` is set, where one of the real libraries was imported before, or where another package
    brings methods, tasks or adapters, since their imports may compute.
    """
    plugins = any(entry_points(group=group) for group in GROUPS)
    if not (plugins or os.environ.get(OFF) or LIBRARIES & set(sys.modules)):
        sys.meta_path.insert(0, _Finder())
