"""Text of a teacher and its laws: what a drafter is distilled from. Made once, batch by batch, and kept in the cache.

Each batch holds prefixes of one length and what the teacher went on with, and at every position its largest
probabilities. The end of text is never chosen, so that every row is full; its probability is kept with the others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from harness.backbones.checkpoints import sources, transformers_models
from harness.errors import UsageError
from harness.platform.folders import cache_folder
from harness.train.prompts import held_out, prefixes

LOG = logging.getLogger(__name__)
TEMPERATURES = (0.0, 0.7, 1.0)
"""Of the batches, in turn."""


@dataclass(frozen=True)
class Plan:
    """What is generated.

    Args:
        rows: of a batch for training. few: of a held-out one. new: tokens that the teacher adds. most: of a prefix at
            most. top: probabilities kept a position. procedural: prefixes of the world of code. seed: of prefixes and
            draws. batches: for training. checks: held-out ones. These two may grow: what was made before stays.
    """

    rows: int = 64
    few: int = 16
    new: int = 128
    most: int = 160
    top: int = 16
    procedural: int = 5000
    seed: int = 0
    batches: int = 12
    checks: int = 6


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of equal length.

    Args:
        tokens: int64 [B, N]. start: length of the prefixes. ids, laws: the largest probabilities after each token but
            the last, [B, N-1, K], and whose they are.
    """

    tokens: Int[Tensor, "B N"]
    start: int
    ids: Int[Tensor, "B N-1 K"]
    laws: Float[Tensor, "B N-1 K"]


@dataclass(frozen=True, eq=False)
class Texts:
    """Batches to train on, and held-out ones."""

    training: list[Batch]
    checks: list[Batch]


def texts(name: str, source: Any, plan: Plan) -> Texts:
    """The teacher's text, generated where it is not in the cache yet; an interrupted generation goes on.

    Raises:
        WeightsError: the teacher's weights are not on this machine.
    """
    folder = sources.locate(name, sources.parse(name, source))
    made = replace(plan, batches=0, checks=0)
    mark = hashlib.sha256(f"{sources.digest(folder)} {made}".encode()).hexdigest()[:12]
    home = cache_folder() / "texts" / f"{name}-{mark}"
    home.mkdir(parents=True, exist_ok=True)
    names = [*(f"train-{i:03}" for i in range(plan.batches)), *(f"check-{i:03}" for i in range(plan.checks))]
    if not all((home / f"{each}.npz").exists() for each in names):
        _generate(name, folder, plan, home)
    read = {each: _read(home / f"{each}.npz") for each in names}
    sides = ([read[each] for each in names if each.startswith(side)] for side in ("train", "check"))
    return Texts(*sides)


def _generate(name: str, folder: Path, plan: Plan, home: Path) -> None:
    tokenizer = transformers_models.read_tokenizer(folder)
    model = transformers_models.read_model(
        name, folder, transformers_models.read_config(name, folder), "sdpa", torch.bfloat16
    )
    model = model.eval().requires_grad_(False)
    found = prefixes(plan.seed, plan.procedural)
    for side, count in (("check", plan.checks), ("train", plan.batches)):
        mine = [list(tokenizer(text).input_ids) for text in found if held_out(text) == (side == "check")]
        for index, rows in enumerate(batched(mine, plan.most, plan.rows if side == "train" else plan.few, count)):
            path = home / f"{side}-{index:03}.npz"
            if path.exists():
                continue
            temperature = TEMPERATURES[index % len(TEMPERATURES)]
            _write(path, extend(model, rows, plan, temperature, seed=1000 * plan.seed + index))
            LOG.info("%s: text %s %d of %d", name, side, index + 1, count)


def batched(ids: Sequence[list[int]], most: int, rows: int, count: int) -> list[list[list[int]]]:
    """``count`` batches of rows of one length each, in the order in which they are full.

    Raises:
        UsageError: too few prefixes share their length.
    """
    lengths: dict[int, list[list[int]]] = {}
    made: list[list[list[int]]] = []
    for row in ids:
        if not 8 <= len(row) <= most:
            continue
        held = lengths.setdefault(len(row), [])
        held.append(row)
        if len(held) == rows:
            made.append(lengths.pop(len(row)))
        if len(made) == count:
            return made
    raise UsageError(
        f"{len(ids)} prefixes give {len(made)} batches of {rows} rows of one length, and {count} are asked for"
    )


@torch.inference_mode()
def extend(model: Any, rows: Sequence[Sequence[int]], plan: Plan, temperature: float, seed: int) -> Batch:
    """Go on with a batch of prefixes; at temperature 0 with the most probable token."""
    draws = torch.Generator().manual_seed(seed)
    tokens, cache = torch.tensor(rows), DynamicCache()
    start, fed = tokens.shape[1], tokens
    ends = model.generation_config.eos_token_id
    ids, laws = [], []
    for _ in range(plan.new):
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True).logits
        for place in logits.split(1, 1):  # one position at a time: a law is 49152 wide
            law = place.float().softmax(-1)
            best = law.topk(plan.top, -1)
            ids.append(best.indices)
            laws.append(best.values)
        fed = _choose(law[:, 0], ends, temperature, draws)
        tokens = torch.cat([tokens, fed], 1)
    return Batch(tokens, start, torch.cat(ids, 1), torch.cat(laws, 1))


def _choose(law: Float[Tensor, "B V"], ends: Any, temperature: float, draws: torch.Generator) -> Int[Tensor, "B 1"]:
    law[:, ends] = 0
    if temperature == 0:
        return law.argmax(-1, keepdim=True)
    sums = (law ** (1 / temperature)).cumsum(-1)
    drawn = torch.rand(len(law), 1, generator=draws) * sums[:, -1:]
    return torch.searchsorted(sums, drawn, right=True).clamp_max(law.shape[1] - 1)


def _write(path: Path, batch: Batch) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part.npz")
    arrays: dict[str, npt.NDArray[Any]] = {
        "tokens": batch.tokens.numpy().astype(np.int32),
        "start": np.array(batch.start),
        "ids": batch.ids.numpy().astype(np.int32),
        "laws": batch.laws.numpy().astype(np.float16),
    }
    np.savez(part, **arrays)  # type: ignore[arg-type]  # numpy's own flag comes after the arrays
    part.replace(path)


def _read(path: Path) -> Batch:
    with np.load(path) as found:
        ids, laws = torch.from_numpy(found["ids"]).long(), torch.from_numpy(found["laws"]).float()
        return Batch(torch.from_numpy(found["tokens"]).long(), int(found["start"]), ids, laws)
