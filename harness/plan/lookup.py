"""Looks up the names of a suite's entries and makes their instances; says where a misplaced key belongs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from stridebench.harness.core.task import Task
from stridebench.harness.errors import StrideError, did_you_mean, said_by
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.planned_method import catalogued
from stridebench.harness.plan.yaml_lines import Loc
from stridebench.harness.registry import BACKBONES, METHODS, TASKS, Registry

MOST_SETTINGS = 100_000
"""Settings of one entry; more are refused before any is made."""
PLACES = {
    "dtype": "a backbone's entry: backbones: [{name: NAME, dtype: bf16}]",
    "resources": "a backbone's entry",
    "at": "a method's entry: methods: [{name: NAME, at: 1}]",
    "limit": "a task's entry: tasks: [{name: NAME, limit: 4}]",
    "sampling": "a task's entry: tasks: [{name: NAME, sampling: {temperature: 1}}]",
    "roles": "the suite's report: report: {name: NAME, roles: {...}}",
}
"""Where a key belongs that is unknown at its place."""
SUITE = (
    *("name", "description", "methods", "backbones", "tasks", "temperature", "top_k", "top_p", "min_p", "order"),
    *("max_new_tokens", "stop_at_eos", "batch", "repetitions", "warmup", "seed", "prove", "greedy_check", "threads"),
    *("timing", "isolation", "sample_limit_s", "cell_limit_s", "report", "budget", "chosen"),
)
"""Keys of a suite itself."""
OPTIONS = ("allow_code_execution", "append", "device", "executor", "offline", "out", "prompts", "resume", "tiny")
"""Options of `stride run` that no suite holds."""

Fault = tuple[Loc, str]


def faults_error(faults: Iterable[Fault]) -> ValidationError:
    """Return an error with one line for each fault; raised in a validator, it is part of the whole suite's error."""
    details = [
        InitErrorDetails(type=PydanticCustomError("entry", "{text}", {"text": text}), loc=loc, input=None)
        for loc, text in faults
    ]
    return ValidationError.from_exception_data("suite", details)


def place_of(key: str, suite: Mapping[str, Any] | None = None) -> str:
    """Return where a misplaced key belongs, as the rest of a message, or "" if it is unknown everywhere.

    Args:
        suite: plain data, whose entries are searched before all others, or None if the key stands in an entry.
    """
    place = PLACES.get(key) or ("the suite itself, at its top level" if key in SUITE else "")
    if not place and key in OPTIONS:
        place = f"the command line: stride run --{key.replace('_', '-')}"
    place = place or _entry_with(key, suite or {})
    return f"; {key} belongs to {place}" if place else ""


def _entry_with(key: str, suite: Mapping[str, Any]) -> str:
    """Return the entry that takes a parameter: one of the suite, or that of the first backbone, method or task."""
    named = {
        kind: [entry["name"] for entry in entries if is_named(entry)]
        for kind, entries in suite.items()
        if isinstance(entries, list)
    }
    for name in named.get("backbones", []):
        try:
            if key in presets.parameters(presets.resolve(name)):
                return f"a backbone's entry: backbones: [{{name: {name}, {key}: ...}}]"
        except StrideError:  # reported at its place
            continue
    if any(key in presets.parameters_of(adapter) for adapter in BACKBONES) and key != "source":
        return f"a backbone's entry: backbones: [{{name: NAME, {key}: ...}}]"
    registries = {"methods": METHODS, "tasks": TASKS}
    owners = [(kind, name) for kind in registries for name in named.get(kind, [])]
    owners += [(kind, name) for kind, registry in registries.items() for name in registry]
    for kind, name in owners:
        if key in parameter_names(registries[kind], name):
            return f"a {kind[:-1]}'s entry: {kind}: [{{name: {name}, {key}: ...}}]"
    return ""


def parameters_of_backbone(entry: Any) -> str:
    """Return the parameters that a backbone's entry may hold, as the rest of a message, or "" if it names none."""
    try:
        names = ", ".join(presets.parameters(presets.resolve(entry["name"]))) if is_named(entry) else ""
    except StrideError:  # reported at its place
        return ""
    return f"; {entry['name']} has the parameters {names}" if names else ""


def parameter_names(registry: Registry[type[Any]], name: str) -> Iterable[str]:
    """Return the names of the parameters of a method or task; of one that cannot be read, none."""
    try:
        return contract.parameters_of(registry, name)
    except StrideError:
        return ()


def is_named(entry: Any) -> bool:
    """Return whether an entry is a mapping of texts, one of which is its name."""
    named = isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"] != ""
    return named and all(isinstance(key, str) for key in entry)


def instances(registry: Registry[type[Any]], name: str, params: Mapping[str, Any]) -> list[Any]:
    """Return the instances of one entry, its sweeps unrolled; a method of the catalogue is described by that.

    Raises:
        ValidationError: some of them cannot be made, or they are too many.
    """
    try:
        kind = None if registry is METHODS and METHODS.pending(name) else contract.class_of(registry, name)
    except StrideError as wrong:
        raise faults_error([((), str(wrong))]) from wrong
    sweep = [value if isinstance(value, list) else [value] for value in params.values()]
    faults: list[Fault] = [
        ((key,), f"{key} is an empty list; give a value, or several to sweep")
        for key, value in params.items()
        if value == []
    ]
    if (count := math.prod(map(len, sweep))) > MOST_SETTINGS:
        more = f"the lists of {name} make {count:,} settings, more than {MOST_SETTINGS:,}"
        raise faults_error([((), f"{more}; shorten them, or split the suite")])
    out: list[Any] = []
    for values in itertools.product(*sweep):
        setting = dict(zip(params, values, strict=True))
        if kind is None and (planned := catalogued(name, setting)):
            out.append(planned)
            continue
        kind = kind or contract.class_of(registry, name)  # one of ours, which keeps the contract
        instance = build(kind, name, setting)
        if isinstance(instance, list):
            faults += [((key,) if key else (), text) for key, text in instance]
            continue
        try:
            contract.check(registry, name, instance)
            out.append(instance)
        except StrideError as wrong:
            faults.append(((), str(wrong)))
    if faults:
        raise faults_error(faults)
    return out


def build(kind: type[Any], name: str, params: Mapping[str, Any]) -> Any | list[tuple[str, str]]:
    """Return an instance of a registered dataclass, or its faults as (parameter, text)."""
    if not is_dataclass(kind):
        return [("", f"{name} is not a dataclass; put @dataclass(frozen=True) under its register(...) line")]
    accepted = [field.name for field in fields(kind) if field.init]
    if unknown := [str(key) for key in params if key not in accepted]:
        meant = "; did you mean 'limit'?" if issubclass(kind, Task) else ""
        hints = {
            key: (key in ("n", "count") and meant) or place_of(key) or did_you_mean(key, accepted) for key in unknown
        }
        known = ", ".join(accepted) or "none"
        return [(key, f"{name} has no parameter {key!r}{hint}; it has {known}") for key, hint in hints.items()]
    try:
        return _adapter(kind).validate_python(dict(params))
    except ValidationError as error:
        return [
            (str(item["loc"][0]) if item["loc"] else "", f"{name}: {'.'.join(map(str, item['loc']))}: {item['msg']}")
            for item in error.errors()
        ]
    except StrideError as error:
        return [("", str(error))]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of an abstract class, or raised by the __post_init__ of a plugin
        return [("", f"{name} cannot be made: {said_by(error)}")]


@functools.lru_cache(maxsize=256)
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
