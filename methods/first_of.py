"""The first drafter that has something to propose: a copy of the text if it is long enough, else another method.

Which of them drafts is known before anything is drawn, so the output has the distribution of the method that is named
second. llama.cpp has such lists of drafters.
Symbols: x copied tokens, p the target's distributions. Copies are point masses, so they are accepted with p(x).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from stridebench.harness.core.capabilities import Requirement, Tap
from stridebench.harness.core.draft import Acceptance, Draft, Fill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, GUESS_KEPT_TOO_OFTEN, verify_chain

COPIERS = ("suffix", "sam", "ngram_mod", "prompt_lookup")
"""Methods that copy from the text."""


@runtime_checkable
class Copier(Protocol):
    """Proposes point masses."""

    def propose(self, run: Run) -> Draft:
        """Return a chain, or nothing."""


@dataclass
class BothStates:
    """The states of the two."""

    copier: Copier
    second: Any


@lru_cache(maxsize=64)
def parsed(setting: str) -> Method[Any]:
    """Return the method of a setting as tables print it: a name, then parameters such as ``nodes=8``.

    Raises:
        UsageError: there is no such method, or it has no such parameter.
    """
    name, *params = re.split(r"\s+(?=\w+=)", setting.strip())
    values = {}
    for key, _, value in (param.partition("=") for param in params):
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[key] = value
    try:
        method: Method[Any] = METHODS.get(name)(**values)
    except TypeError as error:
        raise UsageError(f"first_of: {setting!r} is no setting of {name}: {error}") from error
    return method


@METHODS.register("first_of")
@dataclass(frozen=True)
class FirstOf(Method[BothStates]):
    """Copy from the text if there is a copy of ``least`` tokens, else take a step of another method.

    Args:
        copies: suffix, sam, ngram_mod or prompt_lookup, with parameters if need be: "suffix length=32".
        then: any method: "eagle2", "speculative drafter=self:layers=26 gamma=4".
        least: tokens of the shortest copy that goes first.
    """

    copies: str = "suffix"
    then: str = "eagle2"
    least: int = 4

    source = "llama.cpp's lists of drafters, such as ngram-mod before a model"
    exact_at = "that of the second method"
    mutants = (CORRECTION_FROM_TARGET, GUESS_KEPT_TOO_OFTEN)

    def __post_init__(self) -> None:
        if self.copies.split()[:1] not in [[name] for name in COPIERS] or "policy=" in self.copies:
            raise UsageError(f"first_of: copies is {self.copies!r}; take {' or '.join(COPIERS)}, without a policy")
        if self.least < 1:
            raise UsageError(f"first_of: least is {self.least}; a copy has one token or more")
        parsed(self.copies)
        if Requirement.BIDIRECTIONAL in self.second.requirements or isinstance(self.second, FirstOf):
            raise UsageError(f"first_of: then is {self.then!r}; take a method that decodes from left to right")

    @property
    def second(self) -> Method[Any]:
        """Return the method that drafts where no copy is long enough."""
        return parsed(self.then)

    @property
    def claim(self) -> Claim:
        return self.second.claim

    @property
    def requirements(self) -> frozenset[Requirement]:
        return self.second.requirements

    @property
    def taps(self) -> tuple[Tap, ...]:
        return self.second.taps

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return self.second.components

    @property
    def remembers(self) -> bool:
        return parsed(self.copies).remembers or self.second.remembers

    def drafters(self) -> Sequence[str]:
        return self.second.drafters()

    def probes(self) -> Mapping[str, Sequence[tuple[int, Method[Any]]]]:
        return self.second.probes()

    def start(self, run: Run) -> BothStates:
        return BothStates(parsed(self.copies).start(run), self.second.start(run))

    def step(self, run: Run, state: BothStates) -> Acceptance | Fill:
        draft = state.copier.propose(run)
        if len(draft) < self.least:
            return self.second.step(run, state.second)
        p = run.probs(run.target.forward(draft))
        return verify_chain(draft.tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[FirstOf]:
        return (cls(then="recycling widths=(2, 1)", least=1), cls("sam", "eagle2 depth=1 width=2 nodes=2", least=1))
