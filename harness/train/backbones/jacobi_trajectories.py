"""Jacobi trajectories of a text backbone, which CLLM learns from: decoded once and kept in the cache.

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

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import advance, start, truncate
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import declare_all
from stridebench.harness.registry import METHODS
from stridebench.harness.synthetic.code import Program, programs
from stridebench.harness.train.passages import cached
from stridebench.harness.train.teacher import Teacher

REPEATS = 10
"""A text in which one token stands this many times in a row is not used."""


class Block(NamedTuple):
    """The states of a block, one for each pass.

    Args:
        place: position of its first token, which the pass before gave.
        states: n tokens each; fewer where the text ended.
    """

    place: int
    states: tuple[tuple[int, ...], ...]


class Trajectory(NamedTuple):
    """A prompt of ``start`` tokens with its greedy continuation, and the states of its blocks."""

    tokens: tuple[int, ...]
    start: int
    blocks: tuple[Block, ...]

    @property
    def passes(self) -> int:
        """Passes of the backbone."""
        return sum(len(block.states) for block in self.blocks)


@dataclass(frozen=True)
class TrajectoryPlan:
    """What is decoded.

    Args:
        prompts: number of heads of programs.
        new: tokens at most.
        block: n.
        seed: of programs and guesses.
    """

    prompts: int = 96
    new: int = 96
    block: int = 16
    seed: int = 0

    @property
    def digest(self) -> str:
        """What names the files."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:8]


def first_programs(seed: int, held_out: bool, count: int) -> list[Program]:
    """The first synthetic programs of one side, in the order of a seed."""
    return list(islice(programs(np.random.default_rng(seed), held_out), count))


def trajectory(backbone: Backbone, prompt: Sequence[int], new: int, block: int, draws: SeededDraws) -> Trajectory:
    """Decode with the method ``cllm`` at T = 0 and record what it read in each pass."""
    declare_all()
    method = METHODS.get("cllm")(block=block)
    run = open_run(backbone, lambda name: backbone, Prompt("", tokens=tuple(prompt)), Sampling(0.0), new, draws)
    state, ended = start(method, run), False
    tokens, place = list(prompt), len(prompt) - 1
    states: list[tuple[int, ...]] = []
    blocks: list[Block] = []
    while run.room > 0 and not ended:
        step = advance(method, run, state)
        guesses = step.draft.tokens.tolist()
        states.append((*tokens[place:], *guesses))
        emitted, ended = truncate(step.emitted, run.room, run.eos)
        tokens += emitted
        run.emitted += len(emitted)
        if ended or len(step.emitted) > len(guesses):
            blocks.append(Block(place, tuple(read[: len(tokens) - place] for read in states)))
            place, states = len(tokens) - 1, []
    return Trajectory(tuple(tokens), len(prompt), tuple(blocks))


def repeats(tokens: Sequence[int]) -> bool:
    """Whether one token stands `REPEATS` times in a row, so that the text is of no use."""
    length = 1
    for token, following in pairwise(tokens):
        length = length + 1 if token == following else 1
        if length == REPEATS:
            return True
    return False


def trajectories(teacher: Teacher, plan: TrajectoryPlan, held_out: bool) -> list[Trajectory]:
    """Trajectories of heads of programs, without those that `repeats`; kept in the cache.

    Reports on standard error what it decodes.

    Args:
        teacher: the backbone.
        plan: what is decoded.
        held_out: whether the heads are those that no training sees.
    """
    backbone, side = teacher.backbone, "held-out" if held_out else "train"

    def content() -> bytes:
        print(f"{backbone.name}: {plan.prompts} Jacobi trajectories ({side})", file=sys.stderr, flush=True)
        decoded = [
            trajectory(backbone, backbone.encode(program.head), plan.new, plan.block, _draws(plan, side, index))
            for index, program in enumerate(first_programs(plan.seed, held_out, plan.prompts))
        ]
        return json.dumps(decoded).encode()

    path = cached(teacher.home / f"jacobi-{plan.digest}-{side}.json", content)
    decoded = [
        Trajectory(tuple(tokens), start, tuple(Block(place, tuple(map(tuple, states))) for place, states in blocks))
        for tokens, start, blocks in json.loads(path.read_text(encoding="utf-8"))
    ]
    return [row for row in decoded if not repeats(row.tokens[row.start :])]


def _draws(plan: TrajectoryPlan, side: str, index: int) -> SeededDraws:
    return SeededDraws(plan.seed, "jacobi", f"{side}/{index}", 0)
