"""Jacobi trajectories of a text backbone: what CLLM learns from. Made once, and kept in the cache.

Source: Kou et al. 2024, CLLMs, arXiv:2403.00835, section 3.2.1; the filter is that of the authors' code.
Symbols: n tokens of a block.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from harness.core.backbone import Backbone
from harness.core.draws import SeededDraws
from harness.core.loop import advance, start, truncate
from harness.core.open_run import open_run
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.discover import load_all
from harness.registry import METHODS
from harness.synthetic.code import Program, programs
from harness.train.teacher import Teacher

REPEATS = 10
"""Times that a token may not follow itself."""


class States(NamedTuple):
    """What a block was, pass by pass.

    Args:
        place: of its first token, which was known before. states: n tokens each; shorter where the text ended.
    """

    place: int
    states: tuple[tuple[int, ...], ...]


class Trajectory(NamedTuple):
    """A prompt of ``start`` tokens with what greedy decoding made of it, and how its blocks came to be."""

    tokens: tuple[int, ...]
    start: int
    blocks: tuple[States, ...]

    @property
    def passes(self) -> int:
        """Of the backbone."""
        return sum(len(block.states) for block in self.blocks)


@dataclass(frozen=True)
class Plan:
    """What is decoded.

    Args:
        prompts: heads of programs. new: tokens at most. block: n. seed: of programs and guesses.
    """

    prompts: int = 96
    new: int = 96
    block: int = 16
    seed: int = 0


def written(seed: int, held_out: bool, count: int) -> list[Program]:
    """Programs of one side of the world of code."""
    return list(islice(programs(np.random.default_rng(seed), held_out), count))


def followed(backbone: Backbone, prompt: Sequence[int], new: int, block: int, draws: SeededDraws) -> Trajectory:
    """The method ``cllm`` at T = 0, and what it read in each pass."""
    load_all()
    method = METHODS.get("cllm")(block=block)
    run = open_run(backbone, lambda name: backbone, Prompt("", tokens=tuple(prompt)), Sampling(0.0), new, draws)
    state, ended = start(method, run), False
    tokens, place = list(prompt), len(prompt) - 1
    states: list[tuple[int, ...]] = []
    blocks: list[States] = []
    while run.room > 0 and not ended:
        took = advance(method, run, state)
        guesses = took.draft.tokens.tolist()
        states.append((*tokens[place:], *guesses))
        kept, ended = truncate(took.emitted, run.room, run.eos)
        tokens += kept
        run.emitted += len(kept)
        if ended or len(took.emitted) > len(guesses):
            blocks.append(States(place, tuple(each[: len(tokens) - place] for each in states)))
            place, states = len(tokens) - 1, []
    return Trajectory(tuple(tokens), len(prompt), tuple(blocks))


def repeats(tokens: Sequence[int]) -> bool:
    """Whether a token follows itself so often that the text is of no use."""
    run = 1
    for one, other in pairwise(tokens):
        run = run + 1 if one == other else 1
        if run == REPEATS:
            return True
    return False


def trajectories(teacher: Teacher, plan: Plan, held_out: bool) -> list[Trajectory]:
    """Of heads of programs; without those that `repeats`. Kept in the cache; says on standard error what it makes.

    Args:
        held_out: heads that no training has seen.
    """
    backbone, side = teacher.backbone, "held-out" if held_out else "train"
    mark = hashlib.sha256(repr(sorted(asdict(plan).items())).encode()).hexdigest()[:8]
    path = teacher.home / f"jacobi-{mark}-{side}.json"
    if not path.is_file():
        print(f"{backbone.name}: {plan.prompts} Jacobi trajectories ({side})", file=sys.stderr, flush=True)
        made = [
            followed(backbone, backbone.encode(each.head), plan.new, plan.block, _draws(plan, side, index))
            for index, each in enumerate(written(plan.seed, held_out, plan.prompts))
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(made), encoding="utf-8")
        part.replace(path)
    found = [
        Trajectory(tuple(tokens), first, tuple(States(place, tuple(map(tuple, states))) for place, states in blocks))
        for tokens, first, blocks in json.loads(path.read_text(encoding="utf-8"))
    ]
    return [each for each in found if not repeats(each.tokens[each.start :])]


def _draws(plan: Plan, side: str, index: int) -> SeededDraws:
    return SeededDraws(plan.seed, "jacobi", f"{side}/{index}", 0)
