"""SAM-Decoding: copy what followed the first occurrence of the longest suffix of the text that occurs earlier.

A suffix automaton finds it in constant time a token, so there is no length of an n-gram to choose.

Source: Hu et al. 2024, arXiv:2411.10666: the automaton of prompt and output, and one of the outputs of earlier prompts
in place of a corpus. The drafter that takes over behind short matches is not built.
Symbols: x copied tokens, l tokens of the match, p the target's distributions. Copies are point masses, so they are
accepted with p(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

import torch

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Memory, Method
from stridebench.harness.core.run import END, Run
from stridebench.harness.errors import UsageError, one_of, within
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


class Match(NamedTuple):
    """The longest suffix of a text that an automaton knows: its state there and its number of tokens."""

    state: int = 0
    length: int = 0


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

    def follow(self, match: Match, token: int) -> Match:
        """Return the match of a text with one token more, which this automaton does not add to its own text."""
        state, length = match
        while token not in self.following[state]:
            state = self.links[state]
            if state < 0:
                return Match()
            length = self.lengths[state]
        return Match(self.following[state][token], length + 1)

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
        bias: a match in earlier outputs must have so many tokens more than that in the text.
        earlier: outputs of earlier prompts, each with `END` behind it (`Run.remembered`).
        automaton: of the text.
        earlier_automaton: of ``earlier``.
        earlier_match: of the text, there.
    """

    length: int
    factor: float
    bias: int = 5
    earlier: list[int] = field(default_factory=list)
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    earlier_automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    earlier_match: Match = field(default_factory=Match)

    def __post_init__(self) -> None:
        for token in self.earlier:
            self.earlier_automaton.extend(token)

    def propose(self, run: Run) -> Draft:
        """Return point masses on the copied tokens; none if nothing matches or no room is left."""
        tokens, automaton = run.target.tokens, self.automaton
        for token in tokens[automaton.lengths[automaton.last] :]:
            automaton.extend(token)
            self.earlier_match = self.earlier_automaton.follow(self.earlier_match, token)
        state, matched = self.earlier_match
        own = automaton.links[automaton.last]
        copied: list[int] = []
        if matched - self.bias > automaton.lengths[own]:
            begin = self.earlier_automaton.ends[state]
            copied = self.earlier[begin : begin + self._count(matched, run)]
            copied = copied[: copied.index(END)] if END in copied else copied
        if not copied:
            begin, matched = automaton.ends[own], automaton.lengths[own]
            copied = tokens[begin : begin + self._count(matched, run)]
        return Draft(torch.tensor(copied, dtype=torch.long, device=run.target.device)) if copied else run.nothing

    def _count(self, matched: int, run: Run) -> int:
        return max(0, min(self.length, int(self.factor * matched), run.room - 1))


@METHODS.register("sam")
@dataclass(frozen=True)
class SAM(Method[AutomatonDrafter]):
    """Copy what followed the longest suffix of the text that occurs earlier; longer matches have longer drafts.

    Args:
        length: most tokens of a draft.
        factor: a draft has at most so many times the tokens of the match.
        memory: ``prompt`` copies from a prompt and its output. ``run`` copies from the outputs of earlier prompts
            of the run too, so the speed depends on their order; the output's distribution does not.
        bias: a match in earlier outputs must have so many tokens more than that in the text.
    """

    length: int = 40
    factor: float = 4.0
    memory: Memory = "prompt"
    bias: int = 5

    claim = Claim.SAME_LAW
    source = "arXiv:2411.10666, dynamic automaton of one prompt, static one of earlier outputs"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.length < 1 or not self.factor > 0:
            raise UsageError(f"sam: length {self.length}, factor {self.factor:g}; give 1 or more, and a factor above 0")
        one_of("sam", "memory", self.memory, get_args(Memory))
        within("sam", 0, bias=self.bias)

    def start(self, run: Run) -> AutomatonDrafter:
        return AutomatonDrafter(self.length, self.factor, self.bias, run.remembered)

    def step(self, run: Run, state: AutomatonDrafter) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        return verify_chain(draft.tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[SAM]:
        return (cls(), cls(length=2, factor=1.0), cls(length=3, memory="run", bias=0))
