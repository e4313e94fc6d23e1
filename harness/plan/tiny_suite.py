"""A suite on tiny models of random weights: `stride run SUITE --tiny`. Its figures mean nothing.

Published models become stand-ins of the same family (`harness.backbones.tiny`), and benchmarks a few lines in their
published formats (`tasks/data/tiny`). The methods and their settings stay, but for windows wider than
a small picture, steps of a shorter canvas, and drafters of more layers than a stand-in has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.discover import SAMPLES
from stridebench.harness.plan import contract, presets
from stridebench.harness.registry import METHODS, TASKS

TOKENS = 40
"""Most new tokens of a prompt; a picture is drawn whole."""
SMALLER = {"zipar": {"window": 2}, "mulo_sd": {"draft_window": 2}}
"""Most that these settings may be for pictures of 4 x 4 cells."""
LAYERS = re.compile(r"^(self:(?:.*,)?layers=)\d+")
"""A drafter that consists of layers of the target."""
SHORTER = {"masked_diffusion": ("steps",)}
"""Settings that shrink with the number of new tokens."""


def shrink(plain: dict[str, Any]) -> None:
    """Replace the models and the data of a suite's plain data, whose entries are in their long form."""
    plain["backbones"] = [
        {**{key: value for key, value in entry.items() if key != "max_new_tokens"}, "name": stand_in(entry.get("name"))}
        for entry in plain.get("backbones", ())
    ]
    names = [backbone["name"] for backbone in plain["backbones"]]
    share = TOKENS / max(budget, TOKENS) if isinstance(budget := plain.get("max_new_tokens", TOKENS), int) else 1.0
    plain["methods"] = [_fitting(_renamed(entry), names, share) for entry in plain.get("methods", ())]
    plain["tasks"] = [_small(_renamed(entry), plain.get("max_new_tokens")) for entry in plain.get("tasks", ())]
    most = plain.get("max_new_tokens", TOKENS)
    plain |= {"max_new_tokens": min(most, TOKENS) if isinstance(most, int) else most}
    plain.pop("budget", None)
    plain |= {"prove": False, "warmup": 0, "repetitions": 1, "greedy_check": {"prompts": 0}}
    plain["threads"] = 1  # a second one makes passes of a tiny model slower, many times on a busy machine


def stand_in(name: Any) -> Any:
    """Return `tiny:NAME` if a name is of a published model, and everything else as it is."""
    if isinstance(name, list):
        return [stand_in(one) for one in name]
    return PREFIX + name if isinstance(name, str) and presets.has_stand_in(name) else name


def _renamed(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: value if key == "name" else stand_in(value) for key, value in entry.items()}


def _fitting(entry: Any, backbones: list[Any], share: float) -> Any:
    """Return a method's entry with settings that fit short outputs and small pictures, if it is for stand-ins."""
    if not isinstance(entry, dict):
        return entry
    own, name = entry.get("backbones") or backbones, str(entry["name"])
    if not all(str(one).startswith(PREFIX) for one in (own if isinstance(own, list) else [own])):
        return entry
    entry = {key: _few_layers(value) for key, value in entry.items()}
    if name not in (*SMALLER, *SHORTER):
        return entry
    values = contract.parameters_of(METHODS, name) | entry
    smaller = {key: _each(values[key], partial(min, most)) for key, most in SMALLER.get(name, {}).items()}
    shorter = {
        key: _each(entry[key], lambda count: max(int(count * share), 1))
        for key in SHORTER.get(name, ())
        if key in entry
    }
    return {**entry, **smaller, **shorter}


def _few_layers(value: Any) -> Any:
    """A drafter of some of the target's layers has two of a stand-in's three; each of a sweep; others stay."""
    if isinstance(value, list):
        return [_few_layers(one) for one in value]
    return LAYERS.sub(r"\g<1>2", value) if isinstance(value, str) else value


def _each(value: Any, change: Callable[[int], int]) -> Any:
    """A number changed, or each of a sweep."""
    if isinstance(value, list):
        return [_each(one, change) for one in value]
    return change(value) if isinstance(value, int) else value


def _small(entry: Any, budget: Any) -> Any:
    """Return one prompt of the task's sample, if there is a sample; it has none of the prompts that ``ids`` names."""
    if not isinstance(entry, dict):
        return entry
    sample = _sample(str(entry.get("name")))
    entry = {key: value for key, value in entry.items() if not (sample and key == "ids")}
    whole = budget is not None and entry.get("name") in TASKS and TASKS.get(str(entry["name"])).modality == "image"
    most = {"max_new_tokens": budget} if whole else {}
    if not whole and "max_new_tokens" in entry:
        most = {"max_new_tokens": min(entry["max_new_tokens"], TOKENS)}
    return {**entry, **sample, **most, "limit": 1, "repetitions": 1}


def _sample(name: str) -> dict[str, str]:
    """The parameter that gives a task its sample."""
    path = next(iter(sorted(SAMPLES.glob(f"{name}.*"))), SAMPLES / name)
    if not path.exists():
        return {}
    names = contract.parameters_of(TASKS, name)
    return {"file" if "file" in names else "folder": str(path)}
