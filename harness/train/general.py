"""Recipes for any backbone: `stride train medusa --backbone NAME --data FILE`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from stridebench.harness.backbones.tiny import PREFIX
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import load_recipes, shipped
from stridebench.harness.errors import UsageError, did_you_mean
from stridebench.harness.plan import presets
from stridebench.harness.plan.yaml_lines import load
from stridebench.harness.registry import GENERAL_RECIPES, TASKS
from stridebench.harness.train.passages import TEMPERATURES, AnyPlan, Passages, continued
from stridebench.harness.train.pictures import PicturePlan
from stridebench.harness.train.recipe import Recipe
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import DEVELOPMENT_SHARE

# Passages of a backbone on the prompts of any task or file: the data of `stride train KIND --backbone NAME`.


T = TypeVar("T", bound=Any)
REFERENCES = ("reference", "solution", "answer")
"""The key below which tasks keep the answer to a prompt."""


@dataclass(frozen=True)
class TaskPlan(AnyPlan):
    """Prompts of a task, which the backbone continues; every eighth is of the development side.

    Args:
        task: its registered name; ``prompts`` for a file.
        limit: prompts used; 0: all.
        rows: passages of a batch.
        new: tokens added at most; a picture has a fixed number.
        temperature: by default 0, 0.7 and 1 in turn for texts, and 1 for all others.
        prefixes: of each prompt with its reference answer, cut at so many tokens drawn by the seed; the backbone
            continues each of them. 0: the prompt alone is continued.
        longest: tokens of a prefix and its continuation; 0: the context.
    """

    task: str
    params: dict[str, Any] = field(default_factory=dict)
    limit: int = 0
    rows: int = 64
    new: int = 128
    seed: int = 0
    temperature: float | None = None
    prefixes: int = 0
    longest: int = 0
    device: str = "cpu"
    dtype: str = "bf16"

    def passages(self, backbone: str) -> Passages:
        """Return the backbone's texts after the prompts, which the cache keeps."""
        train, check = self.sides()
        teacher = Teacher.load(backbone, self.dtype, self.device)
        if self.prefixes:
            train, check = (self._cut(teacher, side) for side in (train, check))
        return Passages(teacher, self._written(teacher, train, "train"), self._written(teacher, check, "development"))

    def sides(self) -> tuple[list[Prompt], list[Prompt]]:
        """Return the prompts to train on and to check on, or raise UsageError if there are fewer than two."""
        prompts = list(TASKS.get(self.task)(**self.params).prompts())[: self.limit or None]
        if len(prompts) < 2:
            raise UsageError(f"the data {self.task} has {len(prompts)} prompt; give two or more, one of them to check")
        check = prompts[DEVELOPMENT_SHARE - 1 :: DEVELOPMENT_SHARE] or prompts[-1:]
        return [prompt for prompt in prompts if not any(prompt is other for other in check)], check

    def sha256(self) -> str:
        """Return the hash of all prompts with their reference answers."""
        answers = [[str(prompt.data.get(key, "")) for key in REFERENCES] for side in self.sides() for prompt in side]
        contents = _contents([prompt for side in self.sides() for prompt in side])
        return hashlib.sha256(json.dumps(answers).encode() + contents).hexdigest()

    def _cut(self, teacher: Teacher, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prefixes x_{1:i} of each prompt with its reference answer; i from 1."""
        room = self.longest or teacher.capabilities.context
        cut = []
        for prompt in prompts:
            answer = next((str(prompt.data[key]) for key in REFERENCES if prompt.data.get(key)), "")
            if prompt.text is None:
                raise UsageError(f"the prompt {prompt.id!r} of {self.task} is not a text, so it cannot be cut")
            ids = teacher.backbone.encode(f"{prompt.text} {answer}" if answer else prompt.text)
            last = min(len(ids), room - self.new)
            if last < 1:
                raise UsageError(f"data.longest={room} leaves no room for data.new={self.new} tokens after a prefix")
            digest = hashlib.sha256(f"{self.seed} {prompt.id}".encode()).digest()
            drawn = np.random.default_rng(list(digest)).integers(1, last + 1, size=self.prefixes)
            cut += [Prompt(f"{prompt.id}/{end}", None, tuple(ids[:end])) for end in sorted(drawn.tolist())]
        return cut

    def _written(self, teacher: Teacher, prompts: Sequence[Prompt], side: str) -> list[Passage]:
        passages: list[Passage] = []
        for number, first in enumerate(range(0, len(prompts), self.rows)):
            batch = prompts[first : first + self.rows]
            print(f"{teacher.backbone.name}: {side} passages from {first} of {len(prompts)}", file=sys.stderr)
            warm = self.temperature is None and TASKS.get(self.task).modality == "text"
            temperature = TEMPERATURES[number % len(TEMPERATURES)] if warm else self.temperature
            sampling = Sampling(1.0 if temperature is None else temperature)
            draws = SeededDraws(self.seed, "distilled", side, number, self.device)
            settings = [self.task, self.rows, self.new, self.seed, self.temperature, self.dtype]
            digest = hashlib.sha256(json.dumps(settings).encode() + _contents(batch)).hexdigest()[:12]
            path = teacher.home / f"{digest}-{side}-{number:03}.json"
            passages += continued(teacher, path, batch, self.new, sampling, draws)
        return passages


def _contents(prompts: Sequence[Prompt]) -> bytes:
    """Return all that a model reads of prompts."""
    conditions = [prompt.condition.tobytes() for prompt in prompts if prompt.condition is not None]
    texts = [
        [prompt.id, prompt.text, list(prompt.tokens or ()), [dict(message) for message in prompt.messages], prompt.last]
        for prompt in prompts
    ]
    return b"".join([json.dumps(texts).encode(), *conditions])


# How long a recipe for any backbone trains: in steps, in passes over its passages, or as its paper did.
# `--set epochs=N` counts passes over the passages. `--set schedule=paper` gives the settings of `Recipe.paper`;
# other settings of the command line replace those. `--set schedule=printed` gives those of `Recipe.printed`, data
# included.


def expanded(name: str, recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, object]:
    """Return settings with a schedule replaced by the settings that it stands for."""
    own = dict(settings)
    if (schedule := own.pop("schedule", None)) is None:
        return own
    known = {word: values for word in ("paper", "printed") if (values := getattr(recipe, word))}
    if schedule not in known:
        there = f"the {'one schedule is' if len(known) == 1 else 'schedules are'} {' and '.join(known)}"
        none = f"the recipe {name} has none; give steps and rate"
        raise UsageError(f"--set schedule={schedule}: {there if known else none}")
    return {**known[schedule], **own}


def settled(name: str, recipe: Recipe, plan: TaskPlan | PicturePlan, settings: Mapping[str, Any]) -> dict[str, object]:
    """Settings with epochs and shares replaced by ``steps`` and ``warmup``.

    Args:
        plan: of the passages, which are counted and not made.
    """
    own = dict(settings)
    epochs, share = own.pop("epochs", None), own.pop("warmup_share", None)
    if epochs is not None and "steps" not in own:
        own["steps"] = _steps(name, recipe, plan, epochs, own.get(recipe.per_step))
    if share is not None and "warmup" not in own:
        own["warmup"] = max(1, round(share * own["steps"]))
    return own


def _steps(name: str, recipe: Recipe, plan: TaskPlan | PicturePlan, epochs: Any, together: Any) -> int:
    if not recipe.per_step:
        raise UsageError(f"--set epochs={epochs}: a step of the recipe {name} counts no passages; give steps")
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not epochs > 0:
        raise UsageError(f"--set epochs={epochs!r}: give a number above 0")
    train, _ = plan.sides()
    passages = len(train) * max(1, getattr(plan, "prefixes", 0))
    return max(1, math.ceil(epochs * passages / int(together or getattr(recipe, recipe.per_step))))


FIXED = ("summary", "backbone", "plan", "requires", "device", "paper")
"""Fields of a recipe that `--set` does not change."""
NEEDS = {
    "drafter": (Requirement.HIDDEN,),
    "heads": (Requirement.HIDDEN, Requirement.CONDITION),
    "samplers": (Requirement.GRID,),
}
"""Data that a recipe of a kind reads of its backbone in addition to passages."""
COUNTS = frozenset(["steps", "batch", "rows", "heads", "together", "width", "rounds", "factor", "blocks", "new"])
"""Settings that are 1 or more, unless their default is 0."""
PLAN = "data."
"""In front of a setting of the passages: data.new=64."""


def general(name: str, backbone: str, plan: TaskPlan | PicturePlan, settings: Mapping[str, Any]) -> Recipe:
    """A recipe for a backbone.

    Args:
        backbone: a preset, folder, hub or tiny name.
        settings: fields of the recipe, and of the plan behind ``data.``; see also `harness.train.general`.
    """
    load_recipes()
    recipe = GENERAL_RECIPES.get(name)
    lacking = [need for need in NEEDS.get(recipe.kind, ()) if need not in presets.resolve(backbone).meets()]
    if lacking:
        raise UsageError(
            f"the recipe {name} needs {' and '.join(need.value for need in lacking)}, and {backbone} does not offer "
            f"{', '.join(need.name for need in lacking)}; `stride list matrix` shows what runs on it"
        )
    settings = expanded(name, recipe, settings)
    data = {key.removeprefix(PLAN): value for key, value in settings.items() if key.startswith(PLAN)}
    own = {key: value for key, value in settings.items() if not key.startswith(PLAN)}
    plan = _changed(plan, PLAN, data, ("task", "params", "folder", "device", "dtype"))
    _check_memory(name, backbone, plan)
    device = {"device": plan.device} if "device" in {field.name for field in fields(recipe)} else {}
    if not device and plan.device != "cpu":
        raise UsageError(f"the recipe {name} learns on the CPU; leave --device {plan.device} out")
    changed = _changed(recipe, "", settled(name, recipe, plan, own), FIXED)
    result: Recipe = replace(changed, backbone=backbone, plan=plan, **device)
    return result


def shipped_settings() -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of the trainings of shipped components, with the name of a recipe and of its data."""
    settings: Mapping[str, Mapping[str, Any]] = load(shipped("recipes.yaml").read_text(encoding="utf-8"))
    return settings


def _possible(key: str, value: float, usual: Any) -> bool:
    """Whether a number can be meant: finite, not negative, and a count of something."""
    return math.isfinite(value) and value >= 0 and not (key in COUNTS and value == 0 and usual != 0)


def _changed(recipe: T, prefix: str, values: Mapping[str, Any], fixed: tuple[str, ...]) -> T:
    """Return a recipe or a plan with some fields replaced by values of their types."""
    hints = get_type_hints(type(recipe))
    names = [field.name for field in fields(recipe) if field.name not in fixed]
    checked = {}
    for key, value in values.items():
        if key not in names:
            guess = did_you_mean(key, names)
            raise UsageError(f"--set {prefix}{key}: there is no such setting{guess or '.'} It has {', '.join(names)}")
        try:
            checked[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise UsageError(f"--set {prefix}{key}={value!r}: {error.errors()[0]['msg']}") from error
        if isinstance(checked[key], int | float) and not _possible(key, checked[key], getattr(recipe, key, None)):
            least = "1 or more" if key in COUNTS else "a number from 0"
            raise UsageError(f"--set {prefix}{key}={value!r}: give {least}")
    return replace(recipe, **checked)


def _check_memory(name: str, backbone: str, plan: TaskPlan | PicturePlan) -> None:
    """Refuse a backbone that does not fit, by the size that its preset states."""
    stated = re.search(r"([\d.]+) GB", presets.resolve(backbone).size)
    if stated is None or backbone.startswith(PREFIX):
        return
    needed = float(stated[1]) * (2 if plan.dtype in ("fp32", "fp64") else 1)
    if plan.device == "cpu":
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    else:
        there = torch.cuda.mem_get_info(plan.device)[1] / 1e9
    if needed > there:
        raise UsageError(
            f"the recipe {name} for {backbone} reads {needed:.0f} GB of weights in {plan.dtype}, and {plan.device} has "
            f"{there:.0f} GB of memory: take a smaller backbone, --dtype bf16, or a larger --device"
        )
