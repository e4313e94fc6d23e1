"""Where a key belongs that is unknown where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stridebench.harness.errors import StrideError
from stridebench.harness.plan import contract, presets
from stridebench.harness.registry import BACKBONES, METHODS, TASKS

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
    """Where a key belongs that is unknown where it stands, as the rest of a message; empty: it is unknown everywhere.

    Args:
        key: the key.
        data: of the suite, whose own entries are looked at first; None: the key stands in an entry.
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
        except StrideError:  # reported where it stands
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
