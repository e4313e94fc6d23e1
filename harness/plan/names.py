"""Looks up every name of a suite, unrolls its sweeps, and reports all errors at once."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stridebench.harness.core.method import Method
from stridebench.harness.core.task import Sampling, Task
from stridebench.harness.discover import PAIRS, names_of, plain, report_files
from stridebench.harness.errors import StrideError, UnknownNameError, did_you_mean, said_by
from stridebench.harness.machine.device import NATIVE, native_dtype
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.planned_method import PlannedMethod, catalogued
from stridebench.harness.plan.yaml_lines import Lines, Loc, parse
from stridebench.harness.registry import BACKBONES, METHODS, TASKS, Registry

# Where a key belongs that is unknown at its place.


ENTRIES = {
    "dtype": "a backbone's entry: backbones: [{name: NAME, dtype: bf16}]",
    "resources": "a backbone's entry",
    "at": "a method's entry: methods: [{name: NAME, at: 1}]",
    "limit": "a task's entry: tasks: [{name: NAME, limit: 4}]",
    "sampling": "a task's entry: tasks: [{name: NAME, sampling: {temperature: 1}}]",
    "roles": "the suite's report: report: {name: NAME, roles: {...}}",
}
SUITE = (
    *("name", "description", "methods", "backbones", "tasks", "temperature", "top_k", "top_p", "order"),
    *("max_new_tokens", "stop_at_eos", "batch", "repetitions", "warmup", "seed", "prove", "greedy_check", "threads"),
    *("timing", "isolation", "sample_limit_s", "cell_limit_s", "report"),
)
"""Keys of a suite itself."""
OPTIONS = ("allow_code_execution", "append", "device", "executor", "offline", "out", "prompts", "resume", "tiny")
"""Options of `stride run` that no suite holds."""


def place_of(key: str, data: Mapping[str, Any] | None = None) -> str:
    """Return where a misplaced key belongs, as the rest of a message, or "" if it is unknown everywhere.

    Args:
        key: the key.
        data: of the suite, whose entries are searched first, or None if the key stands in an entry.
    """
    place = ENTRIES.get(key) or ("the suite itself, at its top level" if key in SUITE else "")
    if not place and key in OPTIONS:
        place = f"the command line: stride run --{key.replace('_', '-')}"
    if not place:
        place = _entry_with(key, data or {})
    return f"; {key} belongs to {place}" if place else ""


def _entry_with(key: str, data: Mapping[str, Any]) -> str:
    """The entry that takes a parameter of this name: one of the suite's, else that of the first method or task."""
    for backbone in _names(data, "backbones"):
        try:
            known = key in presets.parameters(presets.resolve(backbone))
        except StrideError:  # reported at its place
            continue
        if known:
            return f"a backbone's entry: backbones: [{{name: {backbone}, {key}: ...}}]"
    if key in _of_backbones():
        return f"a backbone's entry: backbones: [{{name: NAME, {key}: ...}}]"
    owners = [(kind, name) for kind in ("methods", "tasks") for name in _names(data, kind)]
    owners += [("methods", name) for name in METHODS] + [("tasks", name) for name in TASKS]
    for kind, name in owners:
        if key in _parameters(kind, name):
            return f"a {kind[:-1]}'s entry: {kind}: [{{name: {name}, {key}: ...}}]"
    return ""


def _of_backbones() -> set[str]:
    """Names of the parameters of all adapters but the source of their weights."""
    return {key for adapter in BACKBONES for key in presets.parameters_of(adapter)} - {"source"}


def _names(data: Mapping[str, Any], kind: str) -> list[str]:
    entries = data.get(kind, ())
    named = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, Sequence) else []
    return [str(entry["name"]) for entry in named if isinstance(entry.get("name"), str)]


def _parameters(kind: str, name: str) -> set[str]:
    """Names of the parameters of a method or task; of one that cannot be read, none."""
    try:
        return set(contract.parameters_of(METHODS if kind == "methods" else TASKS, name))
    except StrideError:
        return set()


Problems = list[str]
MOST_SETTINGS = 100_000
"""Settings of one entry; more are refused before any is made."""


@dataclasses.dataclass(frozen=True)
class TaskUse:
    """A task and how a suite uses it.

    Args:
        name: its registered name.
        task: the instance.
        limit: number of prompts, or None for as many as the task has by default. A task with a parameter of this name
            chooses them itself; of any other task they are the first.
        backbones: those that the task is for; empty: all that fit.
        sampling: pairs that replace the suite's.
        max_new_tokens: or None for that of the suite.
        chat: its texts go through the model's chat template.
    """

    name: str
    task: Task
    limit: int | None
    backbones: tuple[str, ...] = ()
    sampling: tuple[tuple[str, Any], ...] = ()
    max_new_tokens: int | None = None
    chat: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """Return its parameters by name, without ``limit``, since prompts have the same ids under every limit."""
        task: Any = self.task
        fields = dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
        return {field.name: getattr(task, field.name) for field in fields if field.name != "limit"}

    @property
    def title(self) -> str:
        """Its name and parameters, which distinguish two uses of one task."""
        return f"{self.name} {self.params}"


def normal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Write out short forms: a name becomes a mapping, a scalar a list, ``all`` every name that is here."""
    out = dict(data)
    if out.get("methods") in ("all", ["all"]):
        out["methods"] = contract.usable_names()
    if out.get("backbones") in ("all", ["all"]):
        out["backbones"] = [name for name, spec in presets.by_name().items() if spec.ready()]
    for key in ("methods", "backbones", "tasks", "engines"):
        if key in out:
            entries = out[key] if isinstance(out[key], list | tuple) else [out[key]]
            out[key] = [{"name": entry} if isinstance(entry, str) else entry for entry in entries]
    backbones = []
    for entry in out.get("backbones", ()):
        single = isinstance(entry, dict) and isinstance(entry.get("dtype"), str)
        backbones.append(_with_parameters({**entry, "dtype": [entry["dtype"]]} if single else entry))
    if "backbones" in out:
        out["backbones"] = backbones
    if isinstance(out.get("temperature"), int | float):
        out["temperature"] = [out["temperature"]]
    return out


BACKBONE_KEYS = ("name", "dtype", "resources", "max_new_tokens")
"""Keys of a backbone's entry that are not parameters of its adapter."""
SCALARS = (str, int, float)
"""Types of a value that fits into a name."""


def _with_parameters(entry: Any) -> Any:
    """``{name: NAME, weights: int4}`` as ``{name: "NAME:weights=int4"}``; an entry at fault stays as it is."""
    if not _is_named(entry) or not (extra := {key: entry[key] for key in entry if key not in BACKBONE_KEYS}):
        return entry
    pairs = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in extra.items())
    try:
        known = set(extra) <= set(presets.parameters(presets.resolve(entry["name"])))
    except StrideError:
        known = False
    if not known or not PAIRS.fullmatch(pairs) or not all(isinstance(value, SCALARS) for value in extra.values()):
        return entry
    joint = "," if plain(entry["name"]) != entry["name"] else ":"
    kept = {key: value for key, value in entry.items() if key in BACKBONE_KEYS}
    return {**kept, "name": f"{entry['name']}{joint}{pairs}"}


def as_the_suite_has_them(chosen: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Entries that the command line chose by a bare name, with the parameters that the suite gives that model.

    ``--backbone NAME`` of a suite with ``{name: NAME, chat: true}`` takes that entry, unless one has NAME alone.
    """
    entries = {entry["name"]: entry for entry in reversed(own) if _is_named(entry)}
    bare = {plain(name): entry for name, entry in entries.items() if plain(name) != name}
    return [
        bare.get(entry["name"], entry)
        if _is_named(entry) and len(entry) == 1 and entry["name"] not in entries
        else entry
        for entry in chosen
    ]


def companions(data: dict[str, Any], lines: Lines, problems: Problems) -> None:
    """Remove ``beside`` from a suite's plain data and add the backbones that it names for those of the suite."""
    companions = data.pop("beside", {})
    if not isinstance(companions, dict) or not all(isinstance(names, list) for names in companions.values()):
        problems.append(
            f"{lines.at(('beside',))}: beside is {companions!r}; "
            f"map a backbone to a list of those that run whenever it does"
        )
        return
    names = [entry["name"] for entry in _entries(data, "backbones")]
    added = dict.fromkeys(str(other) for name in names for other in companions.get(name, ()) if other not in names)
    if added:
        data["backbones"] = [*data["backbones"], *({"name": name} for name in added)]


@dataclasses.dataclass(frozen=True)
class MethodUse:
    """A method, and the temperatures and backbones of the suite that it runs at, or None for all."""

    planned: PlannedMethod
    at: tuple[float, ...] | None = None
    backbones: tuple[str, ...] | None = None

    @property
    def method(self) -> Method[Any]:
        """The method itself."""
        return self.planned.method

    def meets(self, backbone: str, temperature: float) -> bool:
        """Whether the suite asks for it there."""
        here = self.backbones is None or bool(names_of(backbone) & set(self.backbones))
        return here and (self.at is None or temperature in self.at)


def methods(data: Mapping[str, Any], lines: Lines, problems: Problems) -> tuple[MethodUse, ...]:
    """Every method entry as instances, in order, without repeats.

    ``at`` limits an entry to some temperatures of the suite, ``backbones`` to some backbones of it.
    """
    uses: dict[MethodUse, None] = {}
    for index, entry in enumerate(_entries(data, "methods")):
        faults = [(key, fault) for key in METHOD_KEYS if (fault := _method_fault(key, entry.get(key)))]
        problems.extend(f"{lines.at(('methods', index, key))}: {fault}" for key, fault in faults)
        if faults:
            continue
        at = entry.get("at")
        temperatures = tuple(at) if isinstance(at, list) else None if at is None else (at,)
        allowed = data.get("temperature", (0.0,))
        for value in temperatures or ():
            if "temperature" not in lines.options and isinstance(allowed, list | tuple) and value not in allowed:
                problems.append(f"{lines.at(('methods', index, 'at'))}: at {value!r} is not a temperature of the suite")
        names = entry.get("backbones")
        named = None if names is None else tuple(names) if isinstance(names, list | tuple) else (names,)
        entries = [backbone["name"] for backbone in _entries(data, "backbones")]
        suite = {*entries, *map(plain, entries)}
        for name in named or ():
            if "backbones" not in lines.options and name not in suite:
                problems.append(f"{lines.at(('methods', index, 'backbones'))}: {name!r} is not a backbone of the suite")
        rest = {key: value for key, value in entry.items() if key not in METHOD_KEYS}
        methods = instances(METHODS, ("methods", index), rest, lines, problems)
        planned = (one if isinstance(one, PlannedMethod) else PlannedMethod.of(one) for one in methods)
        uses |= dict.fromkeys(MethodUse(one, temperatures, named) for one in planned)
    return tuple(uses)


def tasks(data: Mapping[str, Any], lines: Lines, problems: Problems) -> tuple[TaskUse, ...]:
    """Every task entry. One task used in two ways is refused, since its cells would have the same id."""
    out: dict[str, TaskUse] = {}
    for index, entry in enumerate(_entries(data, "tasks")):
        chooses = "limit" in _parameters("tasks", str(entry["name"]))
        keys = [key for key in USE_KEYS if not (key == "limit" and chooses)]
        checked = USE_KEYS if "tasks.limit" in lines.options else keys  # `--limit 0` is an error for all
        faults = [(key, fault) for key in checked if (fault := _use_fault(key, entry.get(key)))]
        problems.extend(f"{lines.at(('tasks', index, key))}: {fault}" for key, fault in faults)
        if faults:
            continue
        rest = {key: value for key, value in entry.items() if key not in keys}
        for task in instances(TASKS, ("tasks", index), rest, lines, problems):
            use = TaskUse(
                str(entry["name"]),
                task,
                task.limit if chooses else entry.get("limit"),
                tuple(entry.get("backbones") or ()),
                tuple(sorted(_numbers(entry.get("sampling") or {}).items())),
                entry.get("max_new_tokens"),
                bool(entry.get("chat")),
            )
            if out.setdefault(use.title, use) != use:
                differences = [key for key in USE_KEYS if getattr(use, key) != getattr(out[use.title], key)]
                problems.append(
                    f"{lines.at(('tasks', index))}: {use.name} is there twice with the same parameters and another "
                    f"{', '.join(differences)}; keep one"
                )
    return tuple(out.values())


METHOD_KEYS = ("at", "backbones")
"""Keys of a method's entry for the places that it runs at; the others are parameters of the method."""


def _method_fault(key: str, value: Any) -> str | None:
    """Return the fault of one of ``METHOD_KEYS``, or None if its value is valid."""
    values = value if isinstance(value, list | tuple) else () if value is None else (value,)
    if key == "at":
        valid = all(isinstance(number, int | float) and not isinstance(number, bool) for number in values)
        return None if valid else f"at is {value!r:.80}; a temperature, or a list of them"
    valid = all(isinstance(name, str) for name in values)
    return None if valid else f"backbones is {value!r:.80}; a name, or a list of names"


USE_KEYS = ("limit", "backbones", "sampling", "max_new_tokens", "chat")
"""Keys of a task's entry that say how it is used; the others are parameters of the task."""


def _use_fault(key: str, value: Any) -> str | None:
    """Return the fault of one of ``USE_KEYS``, or None if its value is valid."""
    if value is None:
        return None
    if key in ("limit", "max_new_tokens"):
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return None if valid else f"{key} is {value!r}; a whole number from 1"
    if key == "chat":
        return None if isinstance(value, bool) else f"chat is {value!r}; true sends the texts as a user's turn"
    if key == "backbones":
        valid = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        return None if valid else f"backbones is {value!r}; a list of names"
    if not isinstance(value, Mapping):
        return f"sampling is {value!r}; a mapping such as {{temperature: 0.5, top_k: 50}}"
    try:
        Sampling(**_numbers(value))
    except (TypeError, ValueError, StrideError) as error:
        return f"sampling: {error}"
    return None


def _numbers(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole numbers of YAML to floats if the key is a float."""
    return {key: float(value) if key in ("temperature", "top_p") else value for key, value in sampling.items()}


def native_types(data: dict[str, Any], device: str) -> None:
    """Replace ``dtype: native`` of each backbone by the type that the device multiplies: bf16 or fp32."""
    if "backbones" in data:
        data["backbones"] = [_natively(entry, native_dtype(device)) for entry in data["backbones"]]


def _natively(entry: Any, native: str) -> Any:
    dtypes = entry.get("dtype") if isinstance(entry, Mapping) else None
    if not isinstance(dtypes, list | tuple):
        return entry
    return {**entry, "dtype": list(dict.fromkeys(native if dtype == NATIVE else dtype for dtype in dtypes))}


def default_dtypes(data: Mapping[str, Any], lines: Lines, problems: Problems) -> dict[str, str]:
    """Return the default type of each backbone that can be looked up."""
    out = {}
    for index, entry in enumerate(_entries(data, "backbones")):
        try:
            name = str(entry["name"])
            out[name] = presets.default_dtype(presets.resolve(name).adapter)
        except StrideError as wrong:
            problems.append(f"{lines.at(('backbones', index))}: {wrong}")
    return out


def temperatures(data: Mapping[str, Any], lines: Lines, problems: Problems) -> None:
    """Each must be a number from 0."""
    values = data.get("temperature", ())
    for index, value in enumerate(values if isinstance(values, list | tuple) else ()):
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            problems.append(f"{lines.at(('temperature', index))}: temperature {value:g} is not a number from 0 on")


def report(data: Mapping[str, Any], lines: Lines, problems: Problems) -> None:
    """Check that a paper's file defines the report; without the papers' files, no run has one."""
    entry = data.get("report")
    name = entry.get("name") if isinstance(entry, Mapping) else entry
    if isinstance(name, str) and reports() and name not in reports():
        problems.append(f"{lines.at(('report', 'name'))}: {UnknownNameError('report', name, reports())}")


@functools.cache
def reports() -> tuple[str, ...]:
    """Names of all reports."""
    files = (parse(path.read_text(encoding="utf-8")).data for path in report_files())
    return tuple(name for file in files for name in file.get("reports", ()))


def _entries(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Entries that are mappings with a name; the schema reports the others."""
    return [entry for entry in data.get(key, ()) if _is_named(entry)]


def _is_named(entry: Any) -> bool:
    """Whether an entry is a mapping of texts, one of which is its name."""
    named = isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"] != ""
    return named and all(isinstance(key, str) for key in entry)


def instances(
    registry: Registry[type[Any]], loc: Loc, entry: Mapping[str, Any], lines: Lines, problems: Problems
) -> list[Any]:
    """Return the instances of one entry, its sweeps unrolled; of a method in the catalogue, what that says of it."""
    name = str(entry["name"])
    try:
        kind = None if registry is METHODS and METHODS.pending(name) else contract.class_of(registry, name)
    except StrideError as wrong:
        problems.append(f"{lines.at(loc)}: {wrong}")
        return []
    params = {name: value for name, value in entry.items() if name != "name"}
    for key, value in params.items():
        if value == []:
            problems.append(f"{lines.at((*loc, key))}: {key} is an empty list; give a value, or several to sweep")
    sweep = [value if isinstance(value, list) else [value] for value in params.values()]
    if (count := math.prod(map(len, sweep))) > MOST_SETTINGS:
        problems.append(
            f"{lines.at(loc)}: the lists of {name} make {count:,} settings, more than {MOST_SETTINGS:,}; "
            f"shorten them, or split the suite"
        )
        return []
    out: list[Any] = []
    for values in itertools.product(*sweep):
        setting = dict(zip(params, values, strict=True))
        if kind is None and (planned := catalogued(name, setting)):
            out.append(planned)
            continue
        kind = kind or contract.class_of(registry, name)  # one of ours, which keeps the contract
        instance = build(kind, name, setting)
        if isinstance(instance, list):
            problems.extend(f"{lines.at((*loc, key))}: {text}" for key, text in instance)
            continue
        try:
            contract.check(registry, name, instance)
            out.append(instance)
        except StrideError as wrong:
            problems.append(f"{lines.at(loc)}: {wrong}")
    return out


def build(kind: type[Any], name: str, params: Mapping[str, Any]) -> Any | list[tuple[str, str]]:
    """Return an instance of a registered dataclass, or its faults as (parameter, text)."""
    if not dataclasses.is_dataclass(kind):
        return [("", f"{name} is not a dataclass; put @dataclass(frozen=True) under its register(...) line")]
    accepted = {f.name: f for f in dataclasses.fields(kind) if f.init}
    wrong = [
        (
            key,
            f"{name} has no parameter {key!r}{_meant(kind, key) or place_of(key) or did_you_mean(key, accepted)}; "
            f"it has {', '.join(accepted) or 'none'}",
        )
        for key in params
        if key not in accepted
    ]
    if wrong:
        return wrong
    try:
        return _adapter(kind).validate_python(dict(params))
    except ValidationError as error:
        return [
            (
                str(item["loc"][0]) if item["loc"] else "",
                f"{name}: {'.'.join(map(str, item['loc']))}: {item['msg']}",
            )
            for item in error.errors()
        ]
    except StrideError as error:
        return [("", str(error))]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of an abstract class, or raised by the __post_init__ of a plugin
        return [("", f"{name} cannot be made: {said_by(error)}")]


def _meant(kind: type[Any], key: str) -> str:
    return "; did you mean 'limit'?" if issubclass(kind, Task) and key in ("n", "count") else ""


@functools.lru_cache(maxsize=256)
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
