"""Registries of names. Registering is the only side effect of importing a method, task or backbone."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from stridebench.harness.errors import ContractError, PluginError, PluginWarning, UnknownNameError, UsageError, said_by

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one kind, each registered once, by our packages or through an entry point."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._items: dict[str, T] = {}
        self._source: dict[str, str] = {}
        self._modules: dict[str, str] = {}
        self._broken: dict[str, ContractError] = {}
        self._plugins: set[str] = set()
        self._loaded = False

    def declare(self, modules: Mapping[str, str]) -> None:
        """Names that our packages register, and the module of each, which is imported when the name is asked for."""
        self._modules.update(modules)

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: register under a lower_snake_case name (``-`` and ``.`` in backbones, layouts and recipes).

        Raises:
            ContractError: the name is taken by another object.
        """

        if not re.fullmatch(
            r"[a-z][a-z0-9_.-]*" if self.kind in ("backbone", "layout", "recipe") else r"[a-z][a-z0-9_]*", name
        ):
            raise ContractError(f"the {self.kind} name {name!r} is not lower_snake_case; rename it")

        def add(item: T) -> T:
            self._add(name, item, str(getattr(item, "__module__", "?")))
            return item

        return add

    def _add(self, name: str, item: T, source: str) -> None:
        owner = self._source.get(name, self._modules.get(name, source))
        existing = self._items.get(name)
        if existing is not item and (existing is not None or owner != source):
            raise ContractError(
                f"two {self.kind}s are called {name!r}: one from {owner}, one from {source}. "
                f"Rename one of them, or uninstall one of the two packages."
            )
        self._items[name] = item
        self._source[name] = source

    def _load_entry_points(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for point in sorted(entry_points(group=self.group), key=lambda p: p.name):
            try:
                self._add(point.name, self._open(point), _origin(point))
                self._plugins.add(point.name)
            except PluginError as error:
                self._broken[point.name] = error
                warnings.warn(str(error), PluginWarning, stacklevel=2)

    def _open(self, point: EntryPoint) -> T:
        """What an entry point names."""
        try:
            loaded: Any = point.load()
        except (ContractError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a plugin may raise anything
            raise PluginError(
                f"the {self.kind} {point.name!r} of {_origin(point)} cannot be imported: "
                f"{said_by(error)}. Fix or uninstall that package."
            ) from error
        if isinstance(loaded, ModuleType) and point.name in self._items:
            return self._items[point.name]  # the module registered it while it was imported
        if self.kind in ("method", "task", "engine") and not isinstance(loaded, type):
            raise PluginError(
                f"the {self.kind} {point.name!r} of {_origin(point)} is a {type(loaded).__name__}, not a class. "
                f"Let its entry point name the class."
            )
        return cast(T, loaded)

    def check(self, name: str) -> None:
        """Check that a name is known, without importing what it names."""
        if name not in self and name not in self._broken:
            raise UnknownNameError(self.kind, name, self)

    def get(self, name: str) -> T:
        """The object of that name.

        Raises:
            UnknownNameError: no such name; the message proposes the closest.
            PluginError: the name is that of a plugin that cannot be imported.
        """
        self._load_entry_points()
        if name in self._broken and name not in self._items:
            raise self._broken[name]
        if name not in self._items:
            self._import(name)
        return self._items[name]

    def _import(self, name: str) -> None:
        self.check(name)
        try:
            importlib.import_module(self._modules[name])
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self._modules[name]}.".startswith(f"{error.name}."):
                raise
            raise UsageError(
                f"the {self.kind} {name!r} is not part of this installation, which has no {error.name}; "
                f"install stridebench with it, or leave {name} out"
            ) from error
        if name not in self._items:
            raise ContractError(
                f"{self._modules[name]} registers no {self.kind} {name!r}; a file is named as what it registers"
            )

    def pending(self, name: str) -> bool:
        """Return whether the name is that of a module of ours which was not imported yet."""
        self._load_entry_points()
        return name in self._modules and name not in self._items

    def source(self, name: str) -> str:
        """The module or distribution that the name came from."""
        self.get(name)
        return self._source[name]

    def from_plugin(self, name: str) -> bool:
        """Whether the name came from an entry point of another package."""
        return name in self._plugins

    def name_of(self, item: T) -> str:
        """Return the name that an object was registered under, or raise ContractError if it was never registered."""
        for name, registered in self._items.items():
            if registered is item:
                return name
        raise ContractError(f"{item!r} is not registered as a {self.kind}; decorate it with register(name)")

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(sorted({*self._items, *self._modules}))

    def __contains__(self, name: object) -> bool:
        self._load_entry_points()
        return name in self._items or name in self._modules


def _origin(point: EntryPoint) -> str:
    where = point.dist
    return f"{where.name} {where.version} ({point.value})" if where else point.value


METHODS: Registry[type[Any]] = Registry("method", "stridebench.methods")
TASKS: Registry[type[Any]] = Registry("task", "stridebench.tasks")
BACKBONES: Registry[Any] = Registry("backbone", "stridebench.backbones")
RECIPES: Registry[Any] = Registry("recipe", "stridebench.recipes")
GENERAL_RECIPES: Registry[Any] = Registry("recipe", "stridebench.general_recipes")
ALTERNATIVES: Registry[Any] = Registry("alternative", "stridebench.alternatives")
KERNELS: Registry[Any] = Registry("kernel", "stridebench.kernels")
ENGINES: Registry[type[Any]] = Registry("engine", "stridebench.engines")
RUNNERS: Registry[type[Any]] = Registry("runner", "stridebench.runners")
"""``engines``: the class that runs the cells of engines (`stridebench.harness.run.engine_runner.EngineRunner`)."""
DATASETS: Registry[Any] = Registry("dataset", "stridebench.datasets")
"""Functions without arguments that return rows of prompts; ``{name: prompts, file: dataset:NAME}`` reads them."""
PICTURE_SCORERS: Registry[Any] = Registry("scorer", "stridebench.scorers")
LAYOUTS: Registry[type[Any]] = Registry("layout", "stridebench.layouts")
REPORTS: Registry[type[Any]] = Registry("report", "stridebench.reports")
"""Tables and figures that are added to the report of a run; see `stridebench.reports.run_report.AddedReport`."""
