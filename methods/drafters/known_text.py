"""The steps that speculative decoding takes to emit a known text, on average: by any verifier, length and policy.

Let y be a text that the target drew, and let a step begin at one of its tokens. By an exact verifier the tokens after a
step are the target's, whatever the step did. So the number a of accepted drafts, given the whole text, has

    P(a >= k | y) = prod over k tokens of min(1, q / p)               token verification
                    min over j = 0..k of prod over j tokens of q / p  block verification
                    prod over k tokens of q                           matching with samples of the target
                    prod over k tokens of P(draft = y | y)            matching by common clocks
                    1 if the k tokens are the most probable ones of q, else 0   point masses of `p_min`

at the text's own tokens, and 0 for a k beyond the end of the draft. Drafts from q are accepted and are the text with
probability prod min(p, q) by tokens, and Q w by blocks, with w of `block.capped_ratios`; both are divided by P. An
accepted draft ends by what q is along the text. So the beginnings of steps are a Markov chain over the text, and the
mean number of steps is a sum over it: no coin is drawn. At T = 0 it is the number itself. Its mean over texts of the
target is that of a decode's number of steps.

Limits. The text must be drawn from the target at this temperature. Behind its first rejected draft a drafter goes on
along tokens that the text does not have. They decide how long the draft becomes, and nothing else. For them a draft is
drawn from each position: means of the lengths of drafts are unbiased, with the noise of these draws. Two policies are
approximate, because they learn: their states are merged if they differ by less than 1/32, and `entropy` takes the
length of a rejected draft from the drawn one.

Symbols: y the text of N tokens, q the drafter's distributions, p the target's, Q and P products along the text.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import ExpectedSteps
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.methods.drafters.draft_model import BEFORE, LEARNING, DraftLength, calm
from stridebench.methods.verifiers.rejection import match_probs

MERGED = 32
"""States of a policy that learns are merged if they round to the same multiple of one part in so many."""


class Look(NamedTuple):
    """What policies see of a distribution, and of a token drawn from it.

    Args:
        highest: probability of the most probable token.
        calm: 1 - sqrt(gamma H) of AdaEDL.
        token: probability of the token.
    """

    highest: float
    calm: float
    token: float

    @classmethod
    def at(cls, law: Float[Tensor, "1 V"], x: Int[Tensor, " 1"]) -> Look:
        """Return the figures of a distribution; reads its device once."""
        return cls(*torch.stack([law.max(), calm(law), law[0, x[0]]]).double().tolist())


class EndOfDraft(NamedTuple):
    """The tokens of a draft, and the passes of the drafter, which looked at one distribution more if it ended there."""

    tokens: int
    passes: int


def end_of(looks: Sequence[Look], length: DraftLength, limit: int) -> EndOfDraft:
    """Return where a policy ends a draft of ``limit`` tokens or as many as there are looks."""
    for k, look in enumerate(looks[:limit]):
        figure = look.calm if length.name == "entropy" else look.highest
        if length.name in BEFORE and figure < length.threshold:
            return EndOfDraft(k, k + 1)
        if length.name == "keep" and look.token < length.threshold:
            return EndOfDraft(k + 1, k + 1)
    return EndOfDraft(min(limit, len(looks)), min(limit, len(looks)))


@dataclass
class KnownText:
    """A text, what a drafter gives along it, and a draft from every position.

    Args:
        room: tokens that the decode may emit, N or more.
        ratios: q / p of each token.
        q: of each token.
        coupled: probability that a drafter of common clocks draws each token, given that the target did.
        best: whether each token is the drafter's most probable one.
        along: what policies see at each token.
        drawn: and along the draft from each position, by whether the drafts are the most probable tokens.
    """

    room: int
    ratios: list[float] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    coupled: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    along: list[Look] = field(default_factory=list)
    drawn: dict[bool, list[list[Look]]] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Run, session: Session, y: Sequence[int], p: Float[Tensor, "N V"], most: int) -> KnownText:
        """Read a text with a drafter, and draft ``most`` tokens from each of its positions, or as many as may follow.

        Args:
            session: of the drafter, on the prompt.
            p: the target's distributions; row n is p(. | prompt, y[:n]).
        """
        text, prompt = cls(run.room), run.target.tokens
        drawing, by_law = [False, True][: 1 + (run.sampling.temperature > 0)], DraftLength("conf")
        for n, token in enumerate(y):
            here = torch.tensor([token], device=session.device)
            for greedy in drawing:
                session.sync([*prompt, *y[:n]])
                looks: list[Look] = []
                room = min(most, run.room - n - 1, session.capabilities.context - len(session) - 1)
                for k in range(max(1, room)):
                    logits = session.forward()
                    q = run.probs(logits)
                    law = by_law.law(run, logits, q)
                    if k == 0 and not greedy:
                        text._add(here, q.double(), law, p[n : n + 1].double())
                    if room < 1:
                        break
                    x = q.argmax(-1) if greedy else run.draws.categorical(q, "draft")
                    looks.append(Look.at(law, x))
                    session.append(x)
                text.drawn.setdefault(greedy, []).append(looks)
        text.drawn.setdefault(True, text.drawn[False])
        return text

    def _add(
        self, y: Int[Tensor, " 1"], q: Float[Tensor, "1 V"], law: Float[Tensor, "1 V"], p: Float[Tensor, "1 V"]
    ) -> None:
        """Add a token. If rounding alone gives it p = 0, it is taken to have been drawn with certainty."""
        drafted, target = float(q[0, y]), float(p[0, y]) or 1.0
        self.ratios.append(drafted / target)
        self.q.append(drafted)
        self.coupled.append(float(match_probs(y, p, q.expand(2, -1))[0]) if drafted else 0.0)  # p's race is known
        self.best.append(float(q.argmax(-1) == y))
        self.along.append(Look.at(law, y))

    def kept(self, n: int, verifier: str, greedy: bool) -> list[float]:
        """Return P(a >= k | y) of a step that begins at token n, for k = 0, 1, ... up to the end of the text."""
        kept, joint = [1.0], 1.0
        for k in range(n, len(self.ratios)):
            if greedy:
                kept.append(kept[-1] * self.best[k])
            elif verifier == "block":
                joint *= self.ratios[k]
                kept.append(min(kept[-1], joint))
            else:
                one = {"token": min(1.0, self.ratios[k]), "match": self.q[k], "coupled": self.coupled[k]}
                kept.append(kept[-1] * one[verifier])
        return kept

    def expected_steps(self, run: Run, verifier: str, most: int, length: DraftLength) -> ExpectedSteps:
        """Return the mean number of steps that emit the text, by a verifier, at most so many drafts, and a policy.

        Args:
            run: says how many decodes are in the batch.
            verifier: token, block, match or coupled.
        """
        size, greedy = len(self.ratios), length.name == "p_min"
        by_draft: defaultdict[tuple[int, int], float] = defaultdict(float)
        begins: list[dict[tuple[int, int], tuple[float, DraftLength]]] = [{} for _ in range(size)]
        begins[0][_state(length)] = (1.0, length)
        for n in range(size):
            kept = self.kept(n, verifier, greedy)
            for weight, policy in begins[n].values():
                limit = min(policy.limit(run, most), self.room - n - 1)
                drawn = end_of(self.drawn[greedy][n], policy, limit)
                by_draft[drawn] += weight
                end = end_of(self.along[n:], policy, limit).tokens
                for k in range(min(end, size - n - 1) + 1):
                    chance = weight * (kept[k] - (kept[k + 1] if k < end else 0.0))
                    if chance > 0 and n + k + 1 < size:
                        drafted = end if k == end else max(k + 1, drawn.tokens)
                        _add_state(begins[n + k + 1], chance, _learned(policy, drafted, k))
        return ExpectedSteps(size, dict(by_draft))


def _state(length: DraftLength) -> tuple[int, int]:
    return round(length.rate * MERGED), round(length.threshold * MERGED * MERGED)


def _learned(length: DraftLength, drafted: int, accepted: int) -> DraftLength:
    if length.name not in LEARNING:
        return length
    after = copy.copy(length)
    after.learn(drafted, accepted)
    return after


def _add_state(states: dict[tuple[int, int], tuple[float, DraftLength]], chance: float, length: DraftLength) -> None:
    """Add a way to begin a step; two whose policies are alike become one, of their mean."""
    key = _state(length)
    before = states.get(key)
    if before is None:
        states[key] = (chance, length)
        return
    weight, same = before
    if length.name in LEARNING:
        share = chance / (weight + chance)
        same = copy.copy(same)
        same.rate += share * (length.rate - same.rate)
        same.threshold += share * (length.threshold - same.threshold)
    states[key] = (weight + chance, same)
