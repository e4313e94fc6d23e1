"""A suite on tiny models of random weights: `stride run SUITE --tiny`. What it measures means nothing.

Published models become stand-ins of the same family (`harness.backbones.tiny`), and benchmarks a few lines in their
published formats (`tasks/data/tiny`). The methods and their settings stay.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from harness.backbones.tiny import PREFIX
from harness.discover import SAMPLES
from harness.plan import presets
from harness.registry import TASKS

TOKENS = 40
"""Most new tokens of a prompt; a stand-in's picture has fewer."""


def shrink(plain: dict[str, Any]) -> None:
    """Replace the models and the data of a suite's plain data, whose entries are in their long form."""
    plain["backbones"] = [{**entry, "name": stand_in(entry.get("name"))} for entry in plain.get("backbones", ())]
    plain["methods"] = [_renamed(entry) for entry in plain.get("methods", ())]
    plain["tasks"] = [_small(_renamed(entry)) for entry in plain.get("tasks", ())]
    report = plain.get("report")
    if isinstance(report, dict) and isinstance(report.get("roles"), dict):
        plain["report"] = {**report, "roles": {role: _renamed(cell) for role, cell in report["roles"].items()}}
    most = plain.get("max_new_tokens", TOKENS)
    plain |= {"max_new_tokens": min(most, TOKENS) if isinstance(most, int) else most}
    plain |= {"prove": False, "warmup": 0, "repetitions": 1, "greedy_check": {"prompts": 0}}


def stand_in(name: Any) -> Any:
    """`tiny:NAME` where a name is of a published model; everything else as it is."""
    if isinstance(name, list):
        return [stand_in(one) for one in name]
    return PREFIX + name if isinstance(name, str) and presets.has_stand_in(name) else name


def _renamed(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: value if key == "name" else stand_in(value) for key, value in entry.items()}


def _small(entry: Any) -> Any:
    """One prompt of the task's sample, where there is one."""
    if not isinstance(entry, dict):
        return entry
    most = {"max_new_tokens": min(entry["max_new_tokens"], TOKENS)} if "max_new_tokens" in entry else {}
    return {**entry, **_sample(str(entry.get("name"))), **most, "limit": 1}


def _sample(name: str) -> dict[str, str]:
    """The parameter that gives a task its sample."""
    path = next(iter(sorted(SAMPLES.glob(f"{name}.*"))), SAMPLES / name)
    if not path.exists():
        return {}
    names = {field.name for field in fields(TASKS.get(name))}
    return {"file" if "file" in names else "folder": str(path)}
