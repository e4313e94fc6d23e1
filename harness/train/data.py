"""Passages of a backbone on the prompts of any task or file: the data of `stride train KIND --backbone NAME`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.harness.train.passages import TEMPERATURES, AnyPlan, Passages, continued
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import DEVELOPMENT_SHARE

REFERENCES = ("reference", "solution", "answer")
"""The key below which tasks keep the answer to a prompt."""


@dataclass(frozen=True)
class TaskPlan(AnyPlan):
    """Prompts of a task, which the backbone continues; every eighth is of the development side.

    Args:
        task: its registered name; ``prompts`` for a file.
        params: of the task.
        limit: prompts used; 0: all.
        rows: passages of a batch.
        new: tokens added at most; a picture has a fixed number.
        seed: of the draws.
        temperature: by default 0, 0.7 and 1 in turn for texts, and 1 for all others.
        prefixes: of each prompt with its reference answer, cut at so many tokens drawn by the seed; the backbone
            continues each of them. 0: the prompt alone is continued.
        longest: tokens of a prefix and its continuation; 0: the context.
        device: of the backbone.
        dtype: of the backbone.
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
        """Return the backbone's texts after the prompts, which the cache keeps.

        Raises:
            UsageError: there are fewer than two prompts, or the backbone cannot read one.
            WeightsError: its weights cannot be had.
        """
        train, check = self.sides()
        teacher = Teacher.load(backbone, self.dtype, self.device)
        if self.prefixes:
            train, check = (self._cut(teacher, side) for side in (train, check))
        return Passages(teacher, self._written(teacher, train, "train"), self._written(teacher, check, "development"))

    def sides(self) -> tuple[list[Prompt], list[Prompt]]:
        """Prompts to train on and to check on.

        Raises:
            UsageError: there are fewer than two.
        """
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
        """The prefixes x_{1:i} of each prompt with its reference answer; i from 1.

        Raises:
            UsageError: a prompt is not a text.
        """
        room = self.longest or teacher.capabilities.context
        cut = []
        for prompt in prompts:
            answer = next((str(prompt.data[key]) for key in REFERENCES if prompt.data.get(key)), "")
            if prompt.text is None:
                raise UsageError(f"the prompt {prompt.id!r} of {self.task} is not a text, so it has no prefixes")
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
            path = teacher.home / f"{self._digest(batch)}-{side}-{number:03}.json"
            passages += continued(teacher, path, batch, self.new, sampling, draws)
        return passages

    def _digest(self, prompts: Sequence[Prompt]) -> str:
        settings = [self.task, self.rows, self.new, self.seed, self.temperature, self.dtype]
        return hashlib.sha256(json.dumps(settings).encode() + _contents(prompts)).hexdigest()[:12]


def _contents(prompts: Sequence[Prompt]) -> bytes:
    """Return all that a model reads of prompts."""
    conditions = [prompt.condition.tobytes() for prompt in prompts if prompt.condition is not None]
    texts = [
        [prompt.id, prompt.text, list(prompt.tokens or ()), [dict(message) for message in prompt.messages], prompt.last]
        for prompt in prompts
    ]
    return b"".join([json.dumps(texts).encode(), *conditions])
