"""Drafts of a small model, token by token or in one pass over masks, and policies of their length.

Sources of the policies: `keep`, Mamou et al. 2024 (DISCO), arXiv:2405.04304, with a threshold for a classifier, as in
transformers' ``ConfidenceCriteria``; `conf`, vLLM's ``draft_confidence_threshold``; `p_min`, llama.cpp; `entropy`,
Agrawal et al. 2024 (AdaEDL), arXiv:2410.18351; `ema`, SGLang's adaptive number of steps; `table`, vLLM's
``num_speculative_tokens_per_batch_size``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters.tree_shapes import TreeShape, branching
from stridebench.methods.verifiers.tree import repeats, trie

POLICIES = {"conf": 0.4, "keep": 0.4, "p_min": 0.75, "entropy": 0.4, "ema": 0.2, "table": 1.0}
"""Policies of the length of a draft, and the number of each unless it is given, as in ``conf:0.6``."""
BY_LAW = ("conf", "keep", "p_min", "entropy")
"""Policies that read the drafter's distribution."""
LEARNING = ("entropy", "ema")
"""Policies that follow how many drafts were accepted."""
SPREAD, TARGET_RATE, STEP, OLD_RATE, OLD_THRESHOLD = 0.2, 0.9, 0.01, 0.5, 0.9
"""Constants of `entropy`: gamma, the rate of acceptance that it aims at, epsilon, beta_1 and beta_2 of AdaEDL."""


@dataclass
class DraftLength:
    """Decides where the drafts of one prompt end, before their most tokens.

    A draft may end for anything that is known before its next token is drawn, or behind a token for that token itself.
    To drop a drawn token for its value would bias the output: the tokens that stay were not drawn from q then.

    Args:
        name: of the policy; "" ends no draft.
        value: its number.
        steps: of `table`: decodes in the batch, and the most tokens from that number on.
        threshold: the number, which `entropy` moves.
        rate: share of the drafts that were accepted, of `entropy`; accepted drafts a step, of `ema`.
    """

    name: str = ""
    value: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()
    threshold: float = 0.0
    rate: float = 0.0

    @classmethod
    def of(cls, method: str, policy: str, most: int, has_law: bool = True) -> DraftLength:
        """Return the policy ``NAME`` or ``NAME:NUMBER``; ``table:1=8,4=3`` lists batch sizes and most tokens.

        Args:
            has_law: false for drafters that propose point masses.

        Raises:
            UsageError: there is no such policy, its number is out of range, or it needs a distribution.
        """
        name, _, number = policy.partition(":")
        if policy and name not in POLICIES:
            raise UsageError(f"{method}: policy is {policy!r}; known: {', '.join(POLICIES)}")
        if name in BY_LAW and not has_law:
            raise UsageError(
                f"{method}: policy {name} reads the drafter's distribution, and copied tokens have none; take "
                f"{' or '.join(other for other in POLICIES if other not in BY_LAW)}"
            )
        if name == "table":
            return cls(name, steps=_steps(method, policy, number))
        value = _share(method, policy, number) if number else POLICIES.get(name, 0.0)
        return cls(name, value, (), value, float(most) if name == "ema" else TARGET_RATE)

    def limit(self, run: Run, most: int) -> int:
        """Return the most tokens of the next draft."""
        if self.name == "ema":
            return min(most, 1 + round(self.rate))
        if self.name == "table":
            running = 1 if run.slot is None else run.slot.served
            return min([most, *(tokens for decodes, tokens in self.steps if decodes <= running)][-1], most)
        return most

    def law(self, run: Run, logits: Float[Tensor, "1 V"], q: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        """Return the distribution that is looked at: q, or that of temperature 1 at T = 0, where q is one token."""
        return q if run.sampling.temperature > 0 or self.name not in BY_LAW else warp(logits, Sampling(1.0))

    def ends_before(self, law: Float[Tensor, "m V"]) -> bool:
        """Return whether no token is drawn from this distribution (m = 1 if so); reads it on its device."""
        return self.name in BEFORE and bool(BEFORE[self.name](law) < self.threshold)

    def ends_behind(self, law: Float[Tensor, "m V"], x: Int[Tensor, " n"]) -> bool:
        """Return whether ``x`` is the last token (m = n = 1 if so); reads its probability on its device."""
        return self.name == "keep" and bool(law[0, x] < self.threshold)

    def follow(self, drafted: int, acceptance: Acceptance) -> None:
        """Learn from a step; reads its acceptance if the policy learns."""
        if self.name in LEARNING:
            self.learn(drafted, acceptance.read().accepted)

    def learn(self, drafted: int, accepted: int) -> None:
        """Move the rate, and the threshold of `entropy`, which an empty draft lowers."""
        if self.name == "ema":
            self.rate += self.value * (accepted - self.rate)
            return
        if drafted:
            self.rate = OLD_RATE * self.rate + (1 - OLD_RATE) * accepted / drafted
        moved = self.threshold + (STEP if drafted and self.rate < TARGET_RATE else -STEP)
        self.threshold = OLD_THRESHOLD * self.threshold + (1 - OLD_THRESHOLD) * moved


def highest(law: Float[Tensor, "m V"]) -> Float[Tensor, ""]:
    """Return the probability of the most probable token, of all rows."""
    return law.max()


def calm(law: Float[Tensor, "1 V"]) -> Float[Tensor, ""]:
    """Return 1 - sqrt(gamma H), AdaEDL's lower bound of the rate of acceptance, with the entropy H in nats."""
    entropy: Tensor = torch.special.entr(law).sum()
    return 1 - (SPREAD * entropy).sqrt()


BEFORE = {"conf": highest, "p_min": highest, "entropy": calm}
"""Of policies that end a draft before a position: the figure of its distribution that must reach the threshold."""


def _share(method: str, policy: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{method}: policy is {policy!r}; give a number from 0 to 1 behind the colon, or none")
    return value


def _steps(method: str, policy: str, table: str) -> tuple[tuple[int, int], ...]:
    pairs = [pair.split("=") for pair in table.split(",")]
    if not all(len(pair) == 2 and all(number.isdecimal() for number in pair) for pair in pairs):
        raise UsageError(
            f"{method}: policy is {policy!r}; list batch sizes and tokens of a draft, as in table:1=8,4=3,16=0"
        )
    return tuple(sorted((int(decodes), int(tokens)) for decodes, tokens in pairs))


@dataclass
class ModelDrafter:
    """Draws ``gamma`` tokens from a drafter's distribution, warped as the target's.

    Args:
        gamma: drafts a step, fewer near the end.
        length: ends a draft before that. By `p_min` the most probable tokens are drafted, as point masses.
        coupled: draw by the clocks of each position, as a target does that is verified by them.
        mask: the id whose copies the drafter fills, all drafts in one pass; or None for a pass each.
    """

    session: Session
    gamma: int
    length: DraftLength = field(default_factory=DraftLength)
    coupled: bool = False
    mask: int | None = None

    def propose(self, run: Run) -> Draft:
        """Draw a chain of drafts; the whole distribution of each is kept."""
        self.session.sync(run.target.tokens)
        tokens, probs = [], []
        room = self.session.capabilities.context - len(self.session)
        for logits in self._rows(min(self.length.limit(run, self.gamma), run.room - 1, room)):
            q = run.probs(logits)
            law = self.length.law(run, logits, q)
            if self.length.ends_before(law):
                break
            x = self._token(run, q)
            self.session.append(x)
            tokens.append(x)
            probs.append(q)
            if self.length.ends_behind(law, x):
                break
        if not tokens:
            return run.nothing
        return Draft(torch.cat(tokens), None if self.length.name == "p_min" else torch.cat(probs))

    def _rows(self, drafts: int) -> Iterator[Float[Tensor, "1 V"]]:
        """Yield the logits of each draft. A pass reads the drafts before it; with masks, one pass reads none of them.

        The masks are not committed, so their entries leave the cache before the next pass.
        """
        if self.mask is None:
            for _ in range(drafts):
                yield self.session.forward()
        elif drafts > 0:
            masks = Draft(torch.full((drafts - 1,), self.mask, device=self.session.device))
            yield from torch.split(self.session.forward(masks), 1)

    def _token(self, run: Run, q: Float[Tensor, "1 V"]) -> Int[Tensor, " 1"]:
        if self.length.name == "p_min":
            return q.argmax(-1)
        return run.draws.race(q, [len(self.session)]) if self.coupled else run.draws.categorical(q, "draft")


@runtime_checkable
class MadeFor(Protocol):
    """The target of a drafter, by its configuration."""

    @property
    def backbone(self) -> str:
        """Return the name of the target."""

    @property
    def fingerprint(self) -> str:
        """Return the hash of its weights and of the settings of its distributions, guidance included."""

    @property
    def branches(self) -> int:
        """Return the number of branches of guidance: 1 or 2."""


def check_shapes(folder: Path, run: Run, width: int, vocabulary: int) -> None:
    """Reject a published drafter whose sizes are not the target's.

    Args:
        vocabulary: ids that it knows; 0: any.

    Raises:
        WeightsError: says which size is another.
    """
    own = run.capabilities
    if width != own.width:
        raise WeightsError(
            f"the drafter in {folder} reads rows of width {width}, and those of {run.backbone} have {own.width}: take "
            f"the drafter that was published for it"
        )
    if vocabulary not in (0, own.vocabulary):
        raise WeightsError(
            f"the drafter in {folder} has a vocabulary of {vocabulary} ids, and {run.backbone} of {own.vocabulary}: "
            f"take the drafter that was published for it"
        )


def check_target(made_for: MadeFor, run: Run) -> None:
    """Reject a drafter of another backbone; a published one names none, and its shapes are held against the target's.

    Raises:
        UsageError: the target is guided, and the drafter has one branch.
        WeightsError: it was trained for another backbone.
    """
    if run.capabilities.branches > made_for.branches:
        raise UsageError(
            f"{run.backbone} is guided and its drafter was trained without guidance: take one trained with two "
            f"branches, or a target at guidance 1"
        )
    if made_for.fingerprint and made_for.fingerprint != run.fingerprint:
        raise WeightsError(
            f"the drafter was trained for {made_for.backbone} ({made_for.fingerprint[:12]}), and the target is "
            f"{run.backbone} ({run.fingerprint[:12]}): train one for it with `stride train drafter`"
        )


# Bugs to inject, which `stride verify` must catch.

OTHER_PROBS_RECORDED = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append((q + 0.1) / (q + 0.1).sum())",
    "the recorded distribution is not the one that was sampled",
)
MOST_PROBABLE_DRAFTS = Mutant(
    f"{__name__}:ModelDrafter._token",
    'run.draws.categorical(q, "draft")',
    "q.argmax(-1)",
    "the most probable tokens are drafted and judged with the whole distribution, as in transformers",
)
DROPPED_FOR_ITS_PROBABILITY = Mutant(
    f"{__name__}:ModelDrafter.propose",
    "if self.length.ends_behind(law, x):",
    "if self.length.ends_behind(law, x) and (tokens.pop(), probs.pop()):",
    "a drawn token is dropped because it is improbable",
)


class Siblings(NamedTuple):
    """Children of n nodes, in the order of their drawing, and the distribution of each given those before it."""

    tokens: Int[Tensor, "n w"]
    probs: Float[Tensor, "n w V"]


def siblings(q: Float[Tensor, "n V"], count: int, draws: Draws, replacement: bool) -> Siblings:
    """Draw ``count`` tokens from each row; without replacement a row that runs out goes on with point masses, by id."""
    if replacement:
        probs = q.repeat_interleave(count, 0)
        return Siblings(draws.categorical(probs, "draft").view(-1, count), probs.view(-1, count, q.shape[1]))
    tokens = draws.distinct(q, count, "draft")
    drawn = torch.zeros_like(q)[:, None].expand(-1, count, -1).scatter(2, tokens[:, :, None], 1.0)
    left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)
    mass = left.sum(2, keepdim=True)
    return Siblings(tokens, torch.where(mass > 0, left / mass, drawn))


@dataclass
class BranchingDrafter:
    """Grows a tree in as many passes of each drafter as it has levels.

    Args:
        widths: w of each level.
        continuations: k, which are merged as far as they begin alike; 0 for a tree.
        shape: of the last tree, with all drafters' nodes.
    """

    sessions: list[Session]
    widths: tuple[int, ...]
    replacement: bool
    continuations: int = 0
    shape: TreeShape = field(init=False)

    def __post_init__(self) -> None:
        self._whole = branching([width * len(self.sessions) for width in self.widths]).on(self.sessions[0].device)
        self.shape = self._whole

    def propose(self, run: Run) -> Draft:
        """Return the tree, its levels cut to the room that is left; no child is dropped or moved for its value."""
        for session in self.sessions:
            session.sync(run.target.tokens)
        room = min(run.space, *(session.capabilities.context - len(session) for session in self.sessions))
        self.shape = self._whole.cut(run.room - 1, room)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        parents = torch.split(self.shape.parents, list(self.shape.sizes))
        for level, width in enumerate(self.widths[: len(parents)]):
            above = Draft(tokens[-1], parents=parents[level - 1]) if level else None
            drawn = [self._drawn(run, session, above, width) for session in self.sessions]
            tokens.append(torch.cat([children.tokens for children in drawn], 1).reshape(-1))
            probs.append(torch.cat([children.probs for children in drawn], 1).flatten(0, 1))
        return self._joined(tokens, probs) if tokens else run.nothing

    def _drawn(self, run: Run, session: Session, above: Draft | None, width: int) -> Siblings:
        logits = session.forward() if above is None else session.grow(above)
        return siblings(run.probs(logits), width, run.draws, self.replacement)

    def _joined(self, tokens: Sequence[Tensor], probs: Sequence[Tensor]) -> Draft:
        ids, parents = torch.cat(list(tokens)), self.shape.parents
        if self.continuations:
            parents, first = trie(ids.view(-1, self.continuations))
            repeated = first != torch.arange(len(ids), device=first.device)
            return Draft(ids, torch.cat(list(probs)), parents, repeats=repeated)
        return Draft(ids, torch.cat(list(probs)), parents, repeats=repeats(ids, parents))


EARLIER_SIBLINGS_NOT_REMOVED = Mutant(
    f"{__name__}:siblings",
    "left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)",
    "left = q[:, None].expand_as(drawn)",
    "siblings without replacement are recorded with the whole distribution",
)
MOST_PROBABLE_SIBLINGS = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    "q.topk(count).indices",
    "the ratio test on the k best tokens, which nobody drew",
)
SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    '(lambda t: t.gather(1, q.gather(1, t).argsort(1, descending=True)))(draws.distinct(q, count, "draft"))',
    "sampled siblings are put in the order of their confidence",
)
