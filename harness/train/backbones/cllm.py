"""A model tuned for Jacobi decoding: `stride train backbone cllm-embedded-code`, decoded by the method ``cllm``.

Source: Kou et al. 2024, CLLMs: consistency large language models, arXiv:2403.00835, sections 3.2 and 4.1.
Symbols: y^(i) the i-th state of a block of n tokens, y* its fixed point; B texts of N rows, L rows of the longest text.
One pass reads both a text (with every y*) and one state of each of its blocks. The states stand after the text. A state
has the positions of its block and attends to the text before the block and to itself.
L_AR is a cross-entropy to the base model's distributions; the paper's is to tokens. The tokens of the trajectories are
greedy, so they would teach the model to be overconfident.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import advance, start, truncate
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import declare_all
from stridebench.harness.registry import METHODS, RECIPES
from stridebench.harness.synthetic.code import Program, programs
from stridebench.harness.train.finetuning import FinetunedText, Tuning
from stridebench.harness.train.finetuning import load_text_backbone as load_backbone
from stridebench.harness.train.passages import cached
from stridebench.harness.train.recipe import Recipe, autocast
from stridebench.harness.train.teacher import Passage, Teacher

# Jacobi trajectories of a text backbone, which CLLM learns from: decoded once and kept in the cache.
# Source: Kou et al. 2024, CLLMs, arXiv:2403.00835, section 3.2.1; the filter is that of the authors' code. Symbols:
# n tokens of a block.


REPEATS = 10
"""A text in which one token stands this many times in a row is not used."""


class TrajectoryBlock(NamedTuple):
    """The states of a block, one for each pass.

    Args:
        place: position of its first token, which the pass before gave.
        states: n tokens each; fewer if the text ended.
    """

    place: int
    states: tuple[tuple[int, ...], ...]


class Trajectory(NamedTuple):
    """A prompt of ``start`` tokens with its greedy continuation, and the states of its blocks."""

    tokens: tuple[int, ...]
    start: int
    blocks: tuple[TrajectoryBlock, ...]

    @property
    def passes(self) -> int:
        """Passes of the backbone."""
        return sum(len(block.states) for block in self.blocks)


@dataclass(frozen=True)
class TrajectoryPlan:
    """The prompts to decode, and how.

    Args:
        block: n.
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
    """Decode with the method ``cllm`` at T = 0 and record the input of each pass."""
    declare_all()
    method = METHODS.get("cllm")(block=block)
    run = open_run(backbone, lambda name: backbone, Prompt("", tokens=tuple(prompt)), Sampling(0.0), new, draws)
    state, ended = start(method, run), False
    tokens, place = list(prompt), len(prompt) - 1
    states: list[tuple[int, ...]] = []
    blocks: list[TrajectoryBlock] = []
    while run.room > 0 and not ended:
        room, step = run.room, advance(method, run, state)
        guesses = step.draft.tokens.tolist()
        states.append((*tokens[place:], *guesses))
        emitted, ended = truncate(step.emitted, room, run.eos)
        tokens += emitted
        if ended or len(step.emitted) > len(guesses):
            blocks.append(TrajectoryBlock(place, tuple(read[: len(tokens) - place] for read in states)))
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

    Reports its progress on standard error.
    """
    backbone, side = teacher.backbone, "held-out" if held_out else "train"

    def content() -> bytes:
        print(f"{backbone.name}: {plan.prompts} Jacobi trajectories ({side})", file=sys.stderr, flush=True)
        decoded = []
        for index, program in enumerate(first_programs(plan.seed, held_out, plan.prompts)):
            draws = SeededDraws(plan.seed, "jacobi", f"{side}/{index}", 0)
            decoded.append(trajectory(backbone, backbone.encode(program.head), plan.new, plan.block, draws))
        return json.dumps(decoded).encode()

    path = cached(teacher.home / f"jacobi-{plan.digest}-{side}.json", content)
    decoded = [
        Trajectory(
            tuple(tokens), start, tuple(TrajectoryBlock(place, tuple(map(tuple, states))) for place, states in blocks)
        )
        for tokens, start, blocks in json.loads(path.read_text(encoding="utf-8"))
    ]
    return [row for row in decoded if not repeats(row.tokens[row.start :])]


@dataclass(frozen=True, kw_only=True)
class TrainCllm(Recipe):
    """L_consistency + 10 L_AR: predictions on a state approach those on the fixed point, and the text stays likely.

    Args:
        fixed: weight of L_AR, which is taken on all rows of a text.
        together: texts of a step, each with one state of every block.
    """

    summary: str
    backbone: str
    plan: TrajectoryPlan = field(default_factory=TrajectoryPlan)
    checks: int = 24
    fixed: float = 10.0
    together: int = 6

    kind = "backbone"
    source = "Jacobi trajectories of the backbone itself, of programs of harness/synthetic/code.py (Apache-2.0)"
    steps: int = 600
    hours: float = 0.25
    rate: float = 2e-4
    warmup = 10
    fall = 0.97
    decay = 0.0
    betas = (0.9, 0.98)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """Return the model to tune. Decodes the backbone's trajectories first if the cache holds none."""
        teacher = Teacher.load(self.backbone, "fp32")
        decoded = trajectories(teacher, self.plan, held_out=False)
        model = Consistent(FinetunedText(self.backbone, Tuning(0)), decoded)
        model.base = teacher
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Consistent)
        count = len(model.trajectories)
        chosen = random.choice(count, size=min(self.together, count), replace=False)
        batch = packed([model.trajectories[int(index)] for index in chosen], random)
        with autocast():
            logits = model.tuned(batch.tokens, batch.places, batch.mask()).logits
            base = model.tuned.base(batch.tokens[:, : int(batch.is_text.sum(1).max())])
        terms = losses(logits.float(), batch, base.float())
        return terms.consistency + self.fixed * terms.autoregressive

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Consistent)
        model.tuned.export(folder)
        model.exported = Teacher(load_backbone("cllm", folder))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out programs, of the tuned model and of the ``_base`` model.

        - ``tokens_a_pass``: of the method ``cllm``.
        - ``bits``: of the programs, a token.
        - ``divergence``: KL(base || tuned) a token of the programs, in nats.
        """
        assert isinstance(model, Consistent) and model.exported is not None and model.base is not None
        few = replace(self.plan, prompts=self.checks)
        figures = {
            f"tokens_a_pass{key}": tokens_a_pass(trajectories(teacher, few, held_out=True))
            for key, teacher in (("", model.exported), ("_base", model.base))
        }
        programs = first_programs(1, True, self.checks)
        return figures | compared(model.base, model.exported, [program.text for program in programs])


class Consistent(nn.Module):
    """A model in training.

    Attributes:
        trajectories: those with a state that is not a fixed point.
    """

    def __init__(self, tuned: FinetunedText, trajectories: Sequence[Trajectory]) -> None:
        super().__init__()
        self.tuned = tuned
        self.trajectories = [decoded for decoded in trajectories if any(map(inner, blocks_of(decoded)))]
        self.base: Teacher | None = None
        self.exported: Teacher | None = None


class TrajectoryBatch(NamedTuple):
    """Texts, each followed by one state of every block.

    Args:
        is_text: whether a row is of the text; these rows come first.
        target: for a row of a state, the row of the text with the prediction that it should make; -1: none.
    """

    tokens: Int[Tensor, "B N"]
    places: Int[Tensor, "B N"]
    visible: Bool[Tensor, "B N N"]
    is_text: Bool[Tensor, "B N"]
    target: Int[Tensor, "B N"]

    def mask(self) -> Float[Tensor, "B one N N"]:
        """Return the mask to add to the attention scores."""
        return torch.zeros(self.visible.shape).masked_fill(~self.visible, -torch.inf)[:, None]


class FixedBlock(NamedTuple):
    """A block, and its fixed point."""

    block: TrajectoryBlock
    fixed_point: tuple[int, ...]


def blocks_of(trajectory: Trajectory) -> list[FixedBlock]:
    """The blocks of a trajectory."""
    return [FixedBlock(block, trajectory.tokens[block.place :][: len(block.states[-1])]) for block in trajectory.blocks]


def inner(fixed: FixedBlock) -> list[tuple[int, ...]]:
    """States of a block that are not its fixed point."""
    return [state for state in fixed.block.states if state != fixed.fixed_point]


def packed(trajectories: Sequence[Trajectory], random: np.random.Generator) -> TrajectoryBatch:
    """Texts with one state of each block, drawn from those that are not its fixed point.

    The loss starts at the first wrong token: earlier rows of a state read the same tokens as those of the text.
    """
    length = max(len(trajectory.tokens) for trajectory in trajectories)
    batches = [_packed(trajectory, length, random) for trajectory in trajectories]
    width = max(len(batch.tokens) for batch in batches)
    fields = zip(zip(*batches, strict=True), (0, 0, 0, 0, -1), strict=True)
    return TrajectoryBatch(*(torch.stack([_padded(row, width, padding) for row in rows]) for rows, padding in fields))


class Losses(NamedTuple):
    """L_consistency, a mean over rows of states, and L_AR, a mean over rows of texts."""

    consistency: Tensor
    autoregressive: Tensor


def losses(logits: Float[Tensor, "B N V"], batch: TrajectoryBatch, base: Float[Tensor, "B L V"]) -> Losses:
    """Both terms of the loss."""
    is_text = batch.is_text[:, : base.shape[1]]
    own = functional.cross_entropy(logits[:, : base.shape[1]][is_text], base[is_text].softmax(-1))
    text, row = (batch.target >= 0).nonzero(as_tuple=True)
    target = logits[text, batch.target[text, row]].detach().softmax(-1)
    return Losses(functional.cross_entropy(logits[text, row], target), own)


def tokens_a_pass(trajectories: Sequence[Trajectory]) -> float:
    """Mean number of tokens that a pass emits."""
    emitted = sum(len(trajectory.tokens) - trajectory.start for trajectory in trajectories)
    return emitted / sum(trajectory.passes for trajectory in trajectories)


def compared(base: Teacher, tuned: Teacher, texts: Sequence[str]) -> dict[str, float]:
    """Bits a token of texts under both models, and KL(base || tuned) in nats a token."""
    lost: dict[str, list[Tensor]] = {"bits": [], "bits_base": [], "divergence": []}
    for text in texts:
        tokens = tuned.backbone.encode(text)
        passage = Passage(tuple(tokens), 1)
        q, p = (
            teacher.read(passage, (), logits=True).logits[:-1].double().log_softmax(-1) for teacher in (tuned, base)
        )
        following = torch.tensor(tokens[1:])[:, None]
        for key, log_probs in (("bits", q), ("bits_base", p)):
            lost[key].append(-log_probs.gather(1, following)[:, 0] / math.log(2))
        lost["divergence"].append((p.exp() * (p - q)).sum(-1))
    return {key: float(torch.cat(values).mean()) for key, values in lost.items()}


def _packed(trajectory: Trajectory, length: int, random: np.random.Generator) -> TrajectoryBatch:
    """One text, padded to ``length`` with rows that attend to themselves alone, and one state of each block."""
    count = len(trajectory.tokens)
    tokens, places = [*trajectory.tokens, *[0] * (length - count)], list(range(length))
    visible = torch.eye(length, dtype=torch.bool)
    visible[:count, :count] |= torch.ones(count, count, dtype=torch.bool).tril()
    target = [-1] * length
    for fixed in blocks_of(trajectory):
        if not (states := inner(fixed)):
            continue
        state, place = states[int(random.integers(len(states)))], fixed.block.place
        wrong = next(index for index, token in enumerate(state) if token != fixed.fixed_point[index])
        rows, size = len(tokens), len(state)
        extended = torch.zeros(rows + size, rows + size, dtype=torch.bool)
        extended[:rows, :rows] = visible
        extended[rows:, :place] = True
        extended[rows:, rows:] = torch.ones(size, size, dtype=torch.bool).tril()
        visible, tokens = extended, [*tokens, *state]
        places += range(place, place + size)
        target += [place + row if wrong - 1 <= row < size - 1 else -1 for row in range(size)]
    is_text = torch.arange(len(tokens)) < count
    return TrajectoryBatch(torch.tensor(tokens), torch.tensor(places), visible, is_text, torch.tensor(target))


def _padded(rows: Tensor, width: int, padding: int) -> Tensor:
    """One text's rows, followed by rows that attend to themselves alone."""
    count = width - len(rows)
    if rows.ndim == 1:
        return functional.pad(rows, (0, count), value=padding)
    return functional.pad(rows, (0, count, 0, count)) | torch.eye(width, dtype=torch.bool)


RECIPES.register("cllm-embedded-code")(
    TrainCllm(summary="embedded-code tuned for Jacobi decoding in blocks, by the method cllm", backbone="embedded-code")
)
