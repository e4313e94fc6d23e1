"""Whether a plugin keeps the contract of a method or a task: one error that names the plugin and the attribute."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.task import Task
from stridebench.harness.discover import catalogue
from stridebench.harness.errors import PluginError, PluginWarning, StrideError, said_by
from stridebench.harness.registry import ENGINES, METHODS, TASKS, Registry

BASES: Mapping[str, type[Any]] = {"method": Method, "task": Task}


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple | set | frozenset) and all(map(check, value))


def _is_a(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TEXT, _BOOL = _is_a(str), _is_a(bool)
_TEXTS = (_each(_TEXT), "a tuple of names")

ATTRIBUTES: Mapping[str, Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "method": {
        "claim": (_is_a(Claim), "a Claim"),
        "requirements": (_each(_is_a(Requirement)), "a frozenset of Requirement"),
        "taps": (_each(lambda tap: tap == "middle" or type(tap) is int), "a tuple of layers"),
        "reference": (_is_a(Method, type(None)), "a Method or None"),
        "components": (
            _each(lambda pair: _each(_TEXT)(pair) and len(pair) == 2),
            "a sequence of pairs of kind and name",
        ),
        "drafters": (_each(_TEXT), "a sequence of names"),
        "drafter_shrink": (lambda value: isinstance(value, int) and value >= 1, "a whole number from 1"),
        "mutants": (_each(_is_a(Mutant)), "a tuple of Mutant"),
        "source": (_is_a(str), "a text"),
        "exact_at": (_is_a(str), "a text"),
    },
    "task": {
        "source": (_is_a(str), "a text"),
        "modality": (_is_a(str), "a text"),
        **dict.fromkeys(("metrics", "optional_metrics", "set_metrics", "optional_set_metrics"), _TEXTS),
        **dict.fromkeys(("runs_code", "eos"), (_BOOL, "True or False")),
    },
}
"""What each attribute must be, as a test and in words; `drafters` is called."""


def class_of(registry: Registry[type[Any]], name: str) -> type[Any]:
    """Return the class of a registered name, or raise PluginError if it is not a dataclass of its kind."""
    kind, base = registry.get(name), BASES[registry.kind]
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise _fault(
            registry, name, f"is {kind!r}, which does not extend stridebench.harness.core.{base.__name__.lower()}"
        )
    if not dataclasses.is_dataclass(kind):
        raise _fault(registry, name, "is not a dataclass; put @dataclass(frozen=True) under its register(...) line")
    return kind


def parameters_of(registry: Registry[type[Any]], name: str) -> dict[str, object]:
    """Return the parameters of a method or task with their defaults, None for one without a default.

    Raises:
        PluginError: it is not a class of its kind, or not a dataclass.
    """
    if registry.pending(name) and (entry := catalogue()[f"{registry.kind}s"].get(name)):
        return values(entry["row"]["params"])
    return {field.name: default(field) for field in dataclasses.fields(class_of(registry, name)) if field.init}


def values(params: Mapping[str, Any]) -> dict[str, object]:
    """Return parameters read from JSON, whose lists are tuples in a method or task."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}


def default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a parameter, or None if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _compares_fields(kind: type[Any]) -> bool:
    """Whether equal instances have equal fields, or are one object: `dataclass` wrote ``__eq__``, or nobody did."""
    compare: Any = kind.__eq__
    code = getattr(compare, "__code__", None)
    return compare is object.__eq__ or (code is not None and code.co_filename == "<string>")


def check(registry: Registry[type[Any]], name: str, instance: Any) -> None:
    """Read every attribute of a method or task that the harness reads.

    Raises:
        PluginError: one is of another type or raises, a parameter cannot be hashed or is left out of comparisons, or
            the class compares its settings in another way than a dataclass.
    """
    for attribute, (is_right, words) in ATTRIBUTES[registry.kind].items():
        value = _call(registry, name, attribute, partial(_read, instance, attribute))
        if not is_right(value):
            raise _fault(registry, name, f"has {attribute} {value!r:.200}; it must be {words}")
    if dataclasses.is_dataclass(instance):
        for field in dataclasses.fields(instance):
            if field.init and not field.compare:
                raise _fault(
                    registry,
                    name,
                    f"has the parameter {field.name} with compare=False, so that two settings of it would be one; "
                    f"leave compare out, or give the field init=False",
                )
        if not _compares_fields(type(instance)):
            raise _fault(
                registry, name, "has its own __eq__, so that two settings could be one; leave it to the dataclass"
            )
    try:
        hash(instance)
    except TypeError as error:
        raise _fault(
            registry, name, f"has a parameter that cannot be hashed ({error}); freeze the class, and use tuples in it"
        ) from error


def settings_of(name: str) -> list[Any]:
    """The variants of a method, checked."""
    kind = class_of(METHODS, name)
    settings: list[Any] = _call(METHODS, name, "variants", lambda: list(kind.variants()))
    if not settings or not all(isinstance(method, kind) for method in settings):
        raise _fault(METHODS, name, f"has variants() {settings!r:.200}; it must return settings of {kind.__name__}")
    for method in settings:
        check(METHODS, name, method)
    return settings


def default_of(settings: list[Any]) -> Any:
    """Return a method at its defaults, or its first variant if a parameter needs a value."""
    try:
        return type(settings[0])()
    except TypeError:
        return settings[0]


def usable_methods(names: Iterable[str] | None = None) -> Iterator[tuple[str, list[Any]]]:
    """Yield methods by name with their variants; one that breaks the contract is left out with a warning."""
    for name in METHODS if names is None else names:
        try:
            yield name, settings_of(name)
        except PluginError as error:
            warnings.warn(str(error), PluginWarning, stacklevel=2)


def usable_names() -> list[str]:
    """Return the names of all methods that keep the contract. Those of the catalogue do, and are not imported."""
    known = [name for name in METHODS if METHODS.pending(name) and name in catalogue()["methods"]]
    return sorted([*known, *(name for name, _ in usable_methods(name for name in METHODS if name not in known))])


def usable_tasks(names: Iterable[str] | None = None) -> Iterator[tuple[str, type[Any]]]:
    """Yield tasks by name; one that breaks the contract is left out with a warning."""
    for name in TASKS if names is None else names:
        try:
            kind = class_of(TASKS, name)
            check(TASKS, name, _Defaults(kind))
            yield name, kind
        except PluginError as error:
            warnings.warn(str(error), PluginWarning, stacklevel=2)


class _Defaults:
    """The class attributes of a task, which may have parameters without a default."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)


def _read(instance: Any, attribute: str) -> Any:
    value = getattr(instance, attribute)
    return value() if attribute == "drafters" else value


def _call(registry: Registry[type[Any]], name: str, attribute: str, read: Callable[[], Any]) -> Any:
    """Call code of a plugin, which may raise anything."""
    try:
        return read()
    except (StrideError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _fault(registry, name, f"cannot be made: {attribute} raises {said_by(error)}") from error


def _fault(registry: Registry[type[Any]], name: str, problem: str) -> PluginError:
    return PluginError(f"the {registry.kind} {name!r} of {registry.source(name)} {problem}")


# Rows of `stride list`, which come from the catalogue as long as a module is not imported.


ListRow = Mapping[str, Any]
"""A row of `stride list`: name, kind, claim, needs, source, summary, and the fields of its kind.

A row of the matrix has name, kind, backbone, outcome, reason and command.
"""


def listed_row(kind: str, name: str, source: str, summary: str | None, **more: object) -> ListRow:
    """Return a row with the fields of its kind; the summary is the first line of a docstring."""
    first = (summary or "").strip().split("\n")[0]
    return {"name": name, "kind": kind, "claim": None, "needs": [], "source": source, **more, "summary": first}


def method_row(name: str, settings: list[Any]) -> ListRow:
    """Return the row of a method with these variants."""
    cls = type(settings[0])
    claims = list(dict.fromkeys(method.claim.name for method in settings))
    more = {"claims": claims, "exact_at": cls.exact_at, "params": _params(cls), "from": METHODS.source(name)}
    needs = sorted(need.name for need in settings[0].requirements)
    return {
        **listed_row("method", name, cls.source, cls.__doc__),
        "claim": default_of(settings).claim.name,
        "needs": needs,
        **more,
    }


def task_row(name: str, kind: type[Any]) -> ListRow:
    """Return the row of a task."""
    facts = {"makes": kind.modality, "metrics": list(kind.metrics), "runs_code": kind.runs_code}
    more = {"params": _params(kind), **facts, "from": TASKS.source(name)}
    return listed_row("task", name, kind.source, kind.__doc__, **more)


def engine_row(name: str) -> ListRow:
    """Return the row of an engine."""
    kind = ENGINES.get(name)
    facts = {**dataclasses.asdict(kind.tells), "params": _params(kind)}
    return listed_row("engine", name, ENGINES.source(name), kind.__doc__, **facts)


def _params(kind: type[Any]) -> Mapping[str, object]:
    return {field.name: default(field) for field in dataclasses.fields(kind) if field.init}


def rows_of(registry: Registry[Any]) -> list[ListRow]:
    """Return one row a method, task or engine; from the catalogue if its module is not imported."""
    entries = catalogue()[f"{registry.kind}s"]
    rows = [entry["row"] for name, entry in entries.items() if registry.pending(name)]
    rows = [{**row, "params": values(row["params"])} for row in rows]
    others = [name for name in registry if not registry.pending(name) or name not in entries]
    if registry is METHODS:
        rows += [method_row(name, settings) for name, settings in usable_methods(others)]
    elif registry is TASKS:
        rows += [task_row(name, kind) for name, kind in usable_tasks(others)]
    else:
        rows += map(engine_row, others)
    return sorted(rows, key=lambda row: str(row["name"]))
