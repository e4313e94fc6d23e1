"""SAM-Decoding: copy what followed the first occurrence of the longest suffix of the text that occurs earlier.

A suffix automaton finds it in constant time a token, so there is no length of an n-gram to choose.

Source: Hu et al. 2024, arXiv:2411.10666: the automaton of prompt and output. That of a corpus, and the drafter that
takes over behind short matches, are not built.
Symbols: x copied tokens, l tokens of the match, p the target's distributions. Copies are point masses, so they are
accepted with p(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


@dataclass
class SuffixAutomaton:
    """All parts of a text; a state holds those that end at the same places, and the longest of them has its length.

    Args:
        lengths: of the longest part of each state.
        links: the state of its longest suffix that ends at more places; -1 for the empty part.
        following: the state of the parts with one more token.
        ends: the index behind the first occurrence of its parts.
        last: state of the whole text.
    """

    lengths: list[int] = field(default_factory=lambda: [0])
    links: list[int] = field(default_factory=lambda: [-1])
    following: list[dict[int, int]] = field(default_factory=lambda: [{}])
    ends: list[int] = field(default_factory=lambda: [0])
    last: int = 0

    def extend(self, token: int) -> None:
        """Add a token to the text."""
        length = self.lengths[self.last] + 1
        state, whole = self.last, self._added(length, {}, length)
        while state >= 0 and token not in self.following[state]:
            self.following[state][token] = whole
            state = self.links[state]
        if state >= 0:
            self.links[whole] = self._suffix(state, token)
        self.last = whole

    def _suffix(self, state: int, token: int) -> int:
        """Return the state of the longest part of ``state`` with one token more; split off if longer ones share it."""
        longer, length = self.following[state][token], self.lengths[state] + 1
        if self.lengths[longer] == length:
            return longer
        split = self._added(length, dict(self.following[longer]), self.ends[longer])
        self.links[split], self.links[longer] = self.links[longer], split
        while state >= 0 and self.following[state].get(token) == longer:
            self.following[state][token] = split
            state = self.links[state]
        return split

    def _added(self, length: int, following: dict[int, int], end: int) -> int:
        self.lengths.append(length)
        self.links.append(0)
        self.following.append(following)
        self.ends.append(end)
        return len(self.links) - 1


@dataclass
class AutomatonDrafter:
    """Copies behind the longest suffix that occurred earlier.

    Args:
        length: most tokens of a draft.
        factor: a draft has at most so many times the tokens of the match.
    """

    length: int
    factor: float
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    def propose(self, run: Run) -> Draft:
        """Return point masses on the copied tokens; none if nothing matches or no room is left."""
        tokens, automaton = run.target.tokens, self.automaton
        for token in tokens[automaton.lengths[automaton.last] :]:
            automaton.extend(token)
        match = automaton.links[automaton.last]
        begin = automaton.ends[match]
        count = min(self.length, int(self.factor * automaton.lengths[match]), run.room - 1)
        copied = tokens[begin : begin + count] if count > 0 else []
        return Draft(torch.tensor(copied, dtype=torch.long, device=run.target.device)) if copied else run.nothing


@METHODS.register("sam")
@dataclass(frozen=True)
class SAM(Method[AutomatonDrafter]):
    """Copy what followed the longest suffix of the text that occurs earlier; longer matches have longer drafts.

    Args:
        length: most tokens of a draft.
        factor: a draft has at most so many times the tokens of the match.
    """

    length: int = 40
    factor: float = 4.0

    claim = Claim.SAME_LAW
    source = "arXiv:2411.10666, dynamic automaton of one prompt"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.length < 1 or not self.factor > 0:
            raise UsageError(f"sam: length {self.length}, factor {self.factor:g}; give 1 or more, and a factor above 0")

    def start(self, run: Run) -> AutomatonDrafter:
        return AutomatonDrafter(self.length, self.factor)

    def step(self, run: Run, state: AutomatonDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        return verify_chain(draft.tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[SAM]:
        return (cls(), cls(length=2, factor=1.0))
