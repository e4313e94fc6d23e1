"""Passages that a teacher wrote, for students to learn from: generated once with a fixed seed and kept in the cache.

There are two kinds. `passages_of` continues prompts through the contract of a backbone, so it serves every modality;
`Teacher.read` then gives hidden rows and logits. `texts_of` continues prefixes in large batches of equal length and
keeps the teacher's largest probabilities at every position, which are the soft targets of a distillation.
Each file of the cache is written whole or not at all. An interrupted generation resumes at its first missing file,
and a larger plan reuses the files of a smaller one.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.record import files
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import SIDES, Side, Source, benchmark_captions, held_out, prefixes, prompts

LOG = logging.getLogger(__name__)
TEMPERATURES = (0.0, 0.7, 1.0)
"""Of the batches of text, in turn, unless a plan names one; pictures are drawn at 1."""


def cached(path: Path, content: Callable[[], bytes]) -> Path:
    """Return a file of the cache; if it does not exist yet, it is written whole or not at all."""
    if not path.is_file():
        body = content()
        files.make(path.parent)
        files.put(path, body)
    return path


@dataclass(frozen=True)
class PassagePlan:
    """What `passages_of` generates.

    Args:
        temperature: by default ``TEMPERATURES`` for text, and 1 for pictures.
    """

    source: Source
    train: int = 8
    development: int = 2
    rows: int = 64
    new: int = 128
    seed: int = 0
    temperature: float | None = None

    @property
    def digest(self) -> str:
        """What names the files: everything except the numbers of batches."""
        fields = {key: value for key, value in asdict(self).items() if key not in SIDES and value is not None}
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:8]

    def temperature_of(self, batch: int) -> float:
        """The temperature that a batch is drawn at."""
        if self.temperature is not None:
            return self.temperature
        return 1.0 if self.source in ("scenes", "digits") else TEMPERATURES[batch % len(TEMPERATURES)]


@dataclass(frozen=True)
class Passages:
    """A backbone, and the passages that it wrote."""

    teacher: Teacher
    train: list[Passage]
    development: list[Passage]


class AnyPlan(ABC):
    """A plan that generates its passages itself, as `stridebench.harness.train.general.TaskPlan`."""

    @abstractmethod
    def passages(self, backbone: str) -> Passages:
        """Of both sides."""

    @abstractmethod
    def sha256(self) -> str:
        """Return the hash of the prompts or pictures, wherever they lie."""


def passages_of(backbone: str, plan: PassagePlan | AnyPlan) -> Passages:
    """Return the passages of a plan, generated if the cache does not hold them; progress goes to standard error."""
    if not isinstance(plan, PassagePlan):
        return plan.passages(backbone)
    teacher = Teacher.load(backbone)
    train, development = (_passages_of_side(teacher, plan, side) for side in SIDES)
    return Passages(teacher, train, development)


def continued(
    teacher: Teacher, path: Path, prompts: Sequence[Prompt], new: int, sampling: Sampling, draws: Draws
) -> list[Passage]:
    """Return a teacher's texts after prompts, from a file of the cache once it is there."""

    def content() -> bytes:
        written = teacher.continued(prompts, new, sampling, draws)
        return json.dumps([[passage.start, *passage.tokens] for passage in written]).encode()

    rows = json.loads(cached(path, content).read_text(encoding="utf-8"))
    return [
        Passage(tuple(tokens), start, prompt.condition, prompt.text)
        for (start, *tokens), prompt in zip(rows, prompts, strict=True)
    ]


def _passages_of_side(teacher: Teacher, plan: PassagePlan, side: Side) -> list[Passage]:
    batches = plan.train if side == "train" else plan.development
    passages: list[Passage] = []
    for number in range(batches):
        path = teacher.home / f"{plan.digest}-{side}-{number:03}.json"
        if not path.is_file():
            print(f"{teacher.backbone.name}: {side} passages {number + 1} of {batches}", file=sys.stderr, flush=True)
        texts = prompts(plan.source, plan.seed, side, batches * plan.rows)[number * plan.rows :][: plan.rows]
        batch_prompts = [Prompt(f"{side}/{number}/{index}", text) for index, text in enumerate(texts)]
        sampling = Sampling(plan.temperature_of(number))
        draws = SeededDraws(plan.seed, "distilled", side, number, teacher.backbone.device)
        batch = continued(teacher, path, batch_prompts, plan.new, sampling, draws)
        dropped = benchmark_captions() if plan.source == "scenes" else ()
        passages += [passage for text, passage in zip(texts, batch, strict=True) if text not in dropped]
    return passages


@dataclass(frozen=True)
class TextPlan:
    """The texts that `texts_of` generates. ``batches`` and ``checks`` may grow: texts of earlier calls are reused."""

    rows: int = 64
    few: int = 16
    new: int = 128
    most: int = 160
    top: int = 16
    procedural: int = 5000
    seed: int = 0
    batches: int = 12
    checks: int = 6

    def digest(self, weights: str) -> str:
        """What names the folder: the teacher's weights and everything except the numbers of batches."""
        fields = ", ".join(f"{key}={value!r}" for key, value in asdict(replace(self, batches=0, checks=0)).items())
        return hashlib.sha256(f"{weights} {fields}".encode()).hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Texts of one length, with the teacher's largest probabilities after every token except the last.

    The end of text is never chosen, so every text is full. Its probability is kept with the others.

    Args:
        ids: the K most probable tokens at each position.
    """

    tokens: Int[Tensor, "B N"]
    start: int
    ids: Int[Tensor, "B N-1 K"]
    probs: Float[Tensor, "B N-1 K"]


@dataclass(frozen=True, eq=False)
class Texts:
    """Batches to train on, and held-out ones."""

    training: list[TextBatch]
    checks: list[TextBatch]


def texts_of(name: str, source: Any, plan: TextPlan) -> Texts:
    """Return a language model's texts, generated if the cache does not hold them."""
    folder = sources.locate(name, sources.parse(name, source))
    home = cache_folder() / "texts" / f"{name}-{plan.digest(sources.digest(folder))}"
    training = [home / f"train-{number:03}.npz" for number in range(plan.batches)]
    checks = [home / f"check-{number:03}.npz" for number in range(plan.checks)]
    if not all(path.is_file() for path in training + checks):
        _generate(name, folder, plan, checks, training)
    return Texts([_read(path) for path in training], [_read(path) for path in checks])


def _generate(name: str, folder: Path, plan: TextPlan, checks: Sequence[Path], training: Sequence[Path]) -> None:
    tokenizer = transformers_models.read_tokenizer(folder)
    model = transformers_models.read_model(
        name, folder, transformers_models.read_config(name, folder), "sdpa", torch.bfloat16
    )
    model = model.eval().requires_grad_(False)
    texts = prefixes(plan.seed, plan.procedural)
    for paths, rows, is_check in ((checks, plan.few, True), (training, plan.rows, False)):
        ids = [list(tokenizer(text).input_ids) for text in texts if held_out(text) == is_check]
        for number, batch in enumerate(batched(ids, plan.most, rows, len(paths))):
            cached(paths[number], partial(_content, model, batch, plan, number))
            LOG.info("%s: %s, %d of %d", name, paths[number].name, number + 1, len(paths))


def batched(ids: Sequence[list[int]], most: int, rows: int, count: int) -> list[list[list[int]]]:
    """``count`` batches of prefixes of equal length, in the order in which they fill up."""
    lengths: dict[int, list[list[int]]] = {}
    batches: list[list[list[int]]] = []
    for prefix in ids:
        if not 8 <= len(prefix) <= most:
            continue
        same_length = lengths.setdefault(len(prefix), [])
        same_length.append(prefix)
        if len(same_length) == rows:
            batches.append(lengths.pop(len(prefix)))
        if len(batches) == count:
            return batches
    raise UsageError(
        f"{len(ids)} prefixes give {len(batches)} batches of {rows} rows of one length, and {count} are asked for"
    )


@torch.inference_mode()
def extend(model: Any, rows: Sequence[Sequence[int]], plan: TextPlan, temperature: float, seed: int) -> TextBatch:
    """Continue a batch of prefixes; at temperature 0 with the most probable token."""
    draws = torch.Generator().manual_seed(seed)
    tokens, cache = torch.tensor(rows), DynamicCache()
    start, window = tokens.shape[1], tokens
    end_ids = model.generation_config.eos_token_id
    ids, probs = [], []
    for _ in range(plan.new):
        logits = model(input_ids=window, past_key_values=cache, use_cache=True).logits
        for position in logits.split(1, 1):  # one position at a time: a distribution is 49,152 wide
            p = position.float().softmax(-1)
            largest = p.topk(plan.top, -1)
            ids.append(largest.indices)
            probs.append(largest.values)
        window = _choose(p[:, 0], end_ids, temperature, draws)
        tokens = torch.cat([tokens, window], 1)
    return TextBatch(tokens, start, torch.cat(ids, 1), torch.cat(probs, 1))


def _choose(p: Float[Tensor, "B V"], end_ids: Any, temperature: float, draws: torch.Generator) -> Int[Tensor, "B 1"]:
    p[:, end_ids] = 0
    if temperature == 0:
        return p.argmax(-1, keepdim=True)
    sums = (p ** (1 / temperature)).cumsum(-1)
    drawn = torch.rand(len(p), 1, generator=draws) * sums[:, -1:]
    return torch.searchsorted(sums, drawn, right=True).clamp_max(p.shape[1] - 1)


def _content(model: Any, rows: Sequence[Sequence[int]], plan: TextPlan, number: int) -> bytes:
    batch = extend(model, rows, plan, TEMPERATURES[number % len(TEMPERATURES)], 1000 * plan.seed + number)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        tokens=batch.tokens.numpy().astype(np.int32),
        start=np.array(batch.start),
        ids=batch.ids.numpy().astype(np.int32),
        probs=batch.probs.numpy().astype(np.float16),
    )
    return buffer.getvalue()


def _read(path: Path) -> TextBatch:
    with np.load(path) as arrays:
        tokens, ids = (torch.from_numpy(arrays[key]).long() for key in ("tokens", "ids"))
        return TextBatch(tokens, int(arrays["start"]), ids, torch.from_numpy(arrays["probs"]).float())


# Counts of token sequences: the control that a trained drafter must beat.


MOST = 3
"""Most frequent tokens that are kept for a context."""


@dataclass(frozen=True)
class NGram:
    """Guesses from the last two tokens; from the last one if the two never occurred; else from frequencies alone.

    Args:
        after: for each context of two, one or no tokens the most frequent next ones, at most three, in order.
    """

    after: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, batches: Iterable[Int[Tensor, "B N"]], ahead: int = 0) -> NGram:
        """Count rows of tokens. Of equally frequent tokens the one that occurred first goes first.

        Args:
            ahead: number of tokens between the context and the guessed token.
        """
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for batch in batches:
            for row in batch.tolist():
                for place in range(len(row) - ahead):
                    for size in range(min(place, 2) + 1):
                        counts[tuple(row[place - size : place])][row[place + ahead]] += 1
        return cls({context: tuple(t for t, _ in count.most_common(MOST)) for context, count in counts.items()})

    def guess(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The best guess after each token."""
        return self.guesses(tokens)[:, :, 0]

    def guesses(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N 3"]:
        """Three guesses after each token, different if enough occurred; guesses of a longer context go first."""
        return torch.tensor(
            [[self._next(row[: place + 1][-2:]) for place in range(len(row))] for row in tokens.tolist()]
        )

    def _next(self, last: list[int]) -> list[int]:
        guesses: dict[int, None] = {}
        for size in range(len(last), -1, -1):
            guesses |= dict.fromkeys(self.after.get(tuple(last[len(last) - size :]), ()))
        best = [*guesses][:MOST] or [0]
        return best + best[-1:] * (MOST - len(best))
