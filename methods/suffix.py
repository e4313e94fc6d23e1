"""SuffixDecoding: copy the most frequent continuation of a suffix of the text so far.

The counts of the paper's suffix tree are those of the places where a suffix stands, so the places are kept and no tree
is. There are two: of one prompt with its output, and, if it remembers, of the outputs of earlier prompts.

Source: Oliaro et al. 2024, arXiv:2411.04975; linear drafts, with the defaults of Arctic Inference.
Symbols: x copied tokens, p the target's distributions. Copies are point masses, so they are accepted with p(x).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Memory, Method
from stridebench.harness.core.run import END, Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import DraftLength
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


@dataclass
class SuffixDrafter:
    """The places of every token that was read. The end of the text is a place too, which nothing continues.

    Args:
        length: most tokens of a draft.
        factor: a draft has at most so many times the tokens of the suffix that it continues.
        min_prob: a draft ends before its estimated probability falls below this.
        depth: longest suffix and draft together.
        policy: of the length, up to ``length``.
        earlier: outputs of earlier prompts, each with `END` behind it (`Run.remembered`).
        places: the index behind each occurrence, by token.
        earlier_places: the same in ``earlier``.
        read: number of tokens read so far.
    """

    length: int
    factor: float
    min_prob: float
    depth: int
    policy: DraftLength = field(default_factory=DraftLength)
    earlier: list[int] = field(default_factory=list)
    places: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    earlier_places: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    read: int = 0

    def __post_init__(self) -> None:
        for place, token in enumerate(self.earlier):
            self.earlier_places[token].append(place + 1)

    def propose(self, run: Run) -> Draft:
        """Return point masses on the best continuation; none if nothing matches or no room is left."""
        tokens = run.target.tokens
        for place in range(self.read, len(tokens)):
            self.places[tokens[place]].append(place + 1)
        self.read = len(tokens)
        copied = self.best(tokens, min(self.policy.limit(run, self.length), run.room - 1))
        return Draft(torch.tensor(copied, dtype=torch.long, device=run.target.device)) if copied else run.nothing

    def best(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the continuation with the most expected tokens; that of this text if earlier ones have no better."""
        draft, score = self._best(tokens, tokens, self.places, room)
        earlier, earlier_score = self._best(tokens, self.earlier, self.earlier_places, room)
        return earlier if earlier_score > score else draft

    def _best(
        self, tokens: Sequence[int], text: Sequence[int], places: dict[int, list[int]], room: int
    ) -> tuple[list[int], float]:
        """Return the best continuation in ``text`` of a suffix of ``tokens``, the longer suffix of two alike."""
        draft: list[int] = []
        score = 0.0
        matches, size = places.get(tokens[-1], []), 1
        only_its_end = 1 if text is tokens else 0
        while len(matches) > only_its_end and size < self.depth:
            budget = min(room, int(size * self.factor), self.depth - size)
            path, expected = self._path(text, matches, budget)
            if path and expected >= score:
                draft, score = path, expected
            size += 1
            if size > len(tokens):
                break
            matches = [place for place in matches if place >= size and text[place - size] == tokens[-size]]
        return draft, score

    def _path(self, tokens: Sequence[int], matches: Sequence[int], budget: int) -> tuple[list[int], float]:
        """Return the most frequent next tokens, and the sum of the estimated probabilities of its prefixes."""
        path: list[int] = []
        probability, expected = 1.0, 0.0
        while len(path) < budget:
            following = Counter(tokens[place] for place in reversed(matches) if place < len(tokens))
            following.pop(END, None)
            if not following:
                break
            token, count = following.most_common(1)[0]  # of equally frequent ones the latest
            probability *= count / len(matches)
            if probability < self.min_prob:
                break
            path.append(token)
            expected += probability
            matches = [place + 1 for place in matches if place < len(tokens) and tokens[place] == token]
        return path, expected


@METHODS.register("suffix")
@dataclass(frozen=True)
class Suffix(Method[SuffixDrafter]):
    """Copy the most frequent continuation of a suffix of the text so far; longer suffixes have longer drafts.

    Args:
        length: most tokens of a draft.
        factor: a draft has at most so many times the tokens of the suffix that it continues.
        min_prob: a draft ends before its estimated probability falls below this.
        depth: longest suffix and draft together.
        policy: ``ema`` copies at most one token more than was accepted lately, ``table:1=16,4=4`` fewer in batches.
        memory: ``prompt`` copies from a prompt and its output. ``run`` copies from the outputs of earlier prompts
            of the run too, so the speed depends on their order; the output's distribution does not.
    """

    length: int = 16
    factor: float = 1.0
    min_prob: float = 0.1
    depth: int = 64
    policy: str = ""
    memory: Memory = "prompt"

    claim = Claim.SAME_LAW
    source = "arXiv:2411.04975, section 4, linear drafts of the trees of one request and of earlier ones"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.length < 1 or self.depth < 2:
            raise UsageError(f"suffix: length {self.length}, depth {self.depth}; they start at 1 and 2")
        if not self.factor > 0 or not 0 <= self.min_prob <= 1:
            raise UsageError(
                f"suffix: factor {self.factor:g}, min_prob {self.min_prob:g}; give a factor above 0 and a probability"
            )
        one_of("suffix", "memory", self.memory, get_args(Memory))
        self._policy()

    def _policy(self) -> DraftLength:
        return DraftLength.of("suffix", self.policy, self.length, has_law=False)

    def start(self, run: Run) -> SuffixDrafter:
        return SuffixDrafter(self.length, self.factor, self.min_prob, self.depth, self._policy(), run.remembered)

    def step(self, run: Run, state: SuffixDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, None, p, run.draws)
        state.policy.follow(len(draft), acceptance)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Suffix]:
        return (cls(), cls(length=3, factor=4.0, min_prob=0.0), cls(length=3, factor=4.0, memory="run"))
