"""A suite file: YAML -> a frozen, resolved `Suite`; every error at once, each with its file and line."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness import presets
from harness.discover import suite_folders
from harness.errors import StrideError, UnknownNameError, UsageError, did_you_mean
from harness.method import Method
from harness.registry import BACKBONES, METHODS, TASKS, Registry
from harness.task import Task

DType = Literal["fp32", "bf16", "fp16", "fp64"]
Loc = tuple[int | str, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackboneEntry(_Strict):
    """A backbone and the types to run it in; none named: its adapter's own."""

    name: str
    dtype: tuple[DType, ...] = ()


class GreedyCheck(_Strict):
    """How much greedy equality in fp32 is looked at on a real backbone; 0 prompts: not at all."""

    prompts: int = Field(2, ge=0)
    tokens: int = Field(32, ge=1)


class Suite(_Strict):
    """What to run, as written in YAML, but for methods and tasks, which are resolved beside it.

    A list where a scalar is expected is a sweep: every value in turn. ``methods: all`` and ``backbones: all``
    stand for everything registered, at its defaults.
    """

    name: str = "adhoc"
    description: str = ""
    methods: tuple[dict[str, Any], ...]
    backbones: tuple[BackboneEntry, ...]
    tasks: tuple[dict[str, Any], ...]
    temperature: tuple[float, ...] = (0.0,)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    order: Literal["temperature_first", "filter_first"] = "temperature_first"
    max_new_tokens: int = Field(64, ge=1)
    stop_at_eos: bool = True
    repetitions: int = Field(1, ge=1)
    warmup: int = Field(1, ge=0)
    seed: int = 0
    prove: bool = True
    greedy_check: GreedyCheck = Field(default_factory=lambda: GreedyCheck(prompts=2, tokens=32))
    threads: int | None = Field(None, ge=1)


@dataclasses.dataclass(frozen=True)
class TaskUse:
    """A task, its registered name, and how many of its prompts are used (None: all)."""

    name: str
    task: Task
    limit: int | None


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A suite with every name looked up and every sweep unrolled."""

    suite: Suite
    methods: tuple[Method[Any], ...]
    tasks: tuple[TaskUse, ...]


def known() -> dict[str, Path]:
    """Suites that we ship, by name: quick, nightly, all, papers/..."""
    found = {}
    for folder in suite_folders():
        for path in sorted(folder.rglob("*.yaml")):
            found[path.relative_to(folder).with_suffix("").as_posix()] = path
    return found


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Resolved:
    """A suite by name or by path.

    Args:
        overrides: top-level keys to replace, as from the command line; their errors name no line.

    Raises:
        UsageError: the file is missing or malformed, or names or values are wrong; all of it at once.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        shipped = known()
        if name not in shipped:
            raise UnknownNameError("suite", name, shipped)
        path = shipped[name]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the suite {path}: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}:1: a suite is a mapping with methods, backbones and tasks")
    data.setdefault("name", path.stem)
    data.update(overrides or {})
    return resolve(data, Lines(str(path), node, frozenset(overrides or {})))


@dataclasses.dataclass(frozen=True)
class Lines:
    """Finds the line of a value in a YAML file."""

    path: str
    node: yaml.Node | None
    overridden: frozenset[str] = frozenset()

    def at(self, loc: Loc) -> str:
        """``file:line`` of the deepest part of ``loc`` that the file holds."""
        if self.node is None or (loc and loc[0] in self.overridden):
            return f"{self.path} ({'.'.join(map(str, loc))})"
        node, line = self.node, self.node.start_mark.line
        for part in loc:
            following = _child(node, part)
            if following is None:
                break
            node, line = following, following.start_mark.line
        return f"{self.path}:{line + 1}"


def _child(node: yaml.Node, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        found: yaml.Node = node.value[part]
        return found
    return None


def resolve(data: Mapping[str, Any], lines: Lines) -> Resolved:
    """Check a suite's plain data and look up every name.

    Raises:
        UsageError: one line for each thing that is wrong.
    """
    problems: list[str] = []
    try:
        suite = Suite.model_validate(_normal(data))
    except ValidationError as error:
        for item in error.errors():
            loc = tuple(part for part in item["loc"] if isinstance(part, int | str))
            problems.append(f"{lines.at(loc)}: {'.'.join(map(str, loc))}: {_say(item, loc)}")
        raise UsageError("\n".join(problems)) from error
    methods = _entries(METHODS, "methods", suite.methods, lines, problems)
    tasks = _tasks(suite, lines, problems)
    entries = []
    for index, entry in enumerate(suite.backbones):
        try:
            adapter = BACKBONES.get(presets.resolve(entry.name).adapter)
            entries.append(entry if entry.dtype else entry.model_copy(update={"dtype": (adapter.default_dtype,)}))
        except StrideError as wrong:
            problems.append(f"{lines.at(('backbones', index))}: {wrong}")
    for value in suite.temperature:
        if not value >= 0:
            problems.append(f"{lines.at(('temperature',))}: temperature {value:g} is negative")
    if problems:
        raise UsageError("\n".join(problems))
    return Resolved(suite.model_copy(update={"backbones": tuple(entries)}), methods, tasks)


def resolve_again(suite: Suite) -> Resolved:
    """Look a checked suite's names up once more, as a worker in another process does."""
    return resolve(suite.model_dump(mode="json"), Lines(suite.name, None))


def _say(item: Any, loc: Loc) -> str:
    if item["type"] == "extra_forbidden":
        known_keys = Suite.model_fields if len(loc) == 1 else {"name", "dtype", "limit", "prompts", "tokens"}
        return f"unknown key{did_you_mean(str(loc[-1]), list(known_keys))}"
    shown = repr(item["input"])
    return f"{item['msg']}" if item["type"] == "missing" else f"{item['msg']}; found {shown[:80]}"


def _normal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Short forms made long: a name for a mapping, a scalar for a list, ``all`` for every name."""
    out = dict(data)
    if out.get("methods") == "all":
        out["methods"] = list(METHODS)
    if out.get("backbones") == "all":
        out["backbones"] = list(presets.known())
    for key in ("methods", "backbones", "tasks"):
        if key in out:
            entries = out[key] if isinstance(out[key], list | tuple) else [out[key]]
            out[key] = [{"name": entry} if isinstance(entry, str) else entry for entry in entries]
    for entry in out.get("backbones", ()):
        if isinstance(entry, dict) and isinstance(entry.get("dtype"), str):
            entry["dtype"] = [entry["dtype"]]
    if isinstance(out.get("temperature"), int | float):
        out["temperature"] = [out["temperature"]]
    return out


def _entries(
    registry: Registry[type[Any]],
    key: str,
    entries: Sequence[Mapping[str, Any]],
    lines: Lines,
    problems: list[str],
) -> tuple[Any, ...]:
    """Instances for each entry, sweeps unrolled, duplicates dropped, in order."""
    out: dict[Any, None] = {}
    for index, entry in enumerate(entries):
        try:
            kind = registry.get(str(entry.get("name")))
        except StrideError as wrong:
            problems.append(f"{lines.at((key, index))}: {wrong}")
            continue
        params = {name: value for name, value in entry.items() if name != "name"}
        sweep = [value if isinstance(value, list) else [value] for value in params.values()]
        for values in itertools.product(*sweep):
            made = build(kind, str(entry["name"]), dict(zip(params, values, strict=True)))
            if isinstance(made, list):
                problems.extend(f"{lines.at((key, index, name))}: {text}" for name, text in made)
            else:
                out[made] = None
    return tuple(out)


def build(kind: type[Any], name: str, params: Mapping[str, Any]) -> Any | list[tuple[str, str]]:
    """An instance of a registered dataclass, or what is wrong as (parameter, text)."""
    accepted = {f.name: f for f in dataclasses.fields(kind) if f.init}
    wrong = [
        (
            key,
            f"{name} has no parameter {key!r}{did_you_mean(key, accepted)}; it has {', '.join(accepted) or 'none'}",
        )
        for key in params
        if key not in accepted
    ]
    if wrong:
        return wrong
    try:
        return TypeAdapter(kind).validate_python(dict(params))
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


def _tasks(suite: Suite, lines: Lines, problems: list[str]) -> tuple[TaskUse, ...]:
    out: list[TaskUse] = []
    for index, entry in enumerate(suite.tasks):
        limit = entry.get("limit")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            problems.append(f"{lines.at(('tasks', index, 'limit'))}: limit is {limit!r}; a whole number from 1")
            continue
        rest = {key: value for key, value in entry.items() if key != "limit"}
        made = _entries(TASKS, "tasks", [rest], dataclasses.replace(lines), problems)
        out.extend(TaskUse(str(entry["name"]), task, limit) for task in made)
    return tuple(out)
