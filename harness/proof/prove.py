"""Is it still the same sampler? Exact laws on tabular models, planted bugs, and greedy equality on real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from harness.core.backbone import Backbone
from harness.core.clock import CpuClock, Stopwatch
from harness.core.draws import Draws
from harness.core.method import Claim, Method, Mutant, label, parameters
from harness.core.open_run import open_run
from harness.core.run import Run
from harness.core.sampling import Sampling, warp
from harness.core.session import Session
from harness.core.task import Prompt
from harness.errors import ContractError, EnumerationLimit, UsageError
from harness.proof.cases import Case, cases_of
from harness.proof.enumerate import EnumeratingDraws, Law, output_law
from harness.proof.mutants import planted

EXACT = 1e-12
"""Total variation below which a law is the reference's: rounding of fp64 sums of some thousand terms."""
CAUGHT = 1e-3
"""Total variation that a planted bug must pass on at least one model."""


def reference_law(backbone: Backbone, prompt: Sequence[int], length: int, sampling: Sampling) -> Law:
    """The chain rule, with a cache of its own for every prefix: no method's code, nothing to roll back."""
    law: Law = {}
    encoded = backbone.open(Prompt("", tokens=tuple(prompt)))

    def extend(output: tuple[int, ...], weight: float) -> None:
        if len(output) == length or (output and output[-1] in backbone.capabilities.eos):
            law[output] = weight
            return
        tokens = [*prompt, *output]
        session = Session(encoded.cache(), backbone.capabilities, tokens, stopwatch=Stopwatch(CpuClock()))
        for token, p in enumerate(warp(session.forward(), sampling)[0].tolist()):
            if p > 0:
                extend((*output, token), weight * p)

    extend((), 1.0)
    return law


def total_variation(a: Law, b: Law) -> float:
    """Half the sum of absolute differences: the largest difference in the probability of any event."""
    return 0.5 * sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys())


def method_law(method: Method[Any], case: Case, draws: EnumeratingDraws | None = None) -> Law:
    """The exact law of a method's output on a case's model; ``draws``: with limits or pins."""
    backbone = case.backbone()

    def opened(draws: Draws) -> Run:
        return open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)

    return output_law(method, opened, draws)


def toy_drafter(backbone: Backbone) -> Callable[[str], Backbone]:
    """Any name opens another random model of the same vocabulary; ``self`` opens the model itself."""
    return lambda name: backbone if name == "self" else backbone.variant({"drafter": name})


def distance(method: Method[Any], case: Case, draws: EnumeratingDraws | None = None) -> float:
    """Total variation between a method and its reference on a case; ``draws``: of the method, with limits or pins."""
    if method.reference is not None:
        return total_variation(method_law(method, case, draws), method_law(method.reference, case))
    reference = reference_law(case.backbone(), case.prompt, case.length, case.sampling)
    return total_variation(method_law(method, case, draws), reference)


@dataclass(frozen=True)
class Effort:
    """How far a proof goes.

    Args:
        widest: outcomes that the draws of one step may promise; a case beyond them is taken a token shorter, and again.
        starts: seeds that answer the method's `pinned` streams, each a proof of its own; 0: all outcomes of theirs too.
    """

    widest: float = math.inf
    starts: int = 0

    def draws(self, method: Method[Any]) -> Iterator[EnumeratingDraws]:
        """One for each proof."""
        pinned = method.pinned if self.starts else frozenset()
        for start in range(self.starts if pinned else 1):
            yield EnumeratingDraws(self.widest, pinned, start)

    def lengths(self, case: Case) -> range:
        """Of outputs, the first one that fits is taken; at least one token is drafted in it."""
        return range(case.length, 1 if self.widest < math.inf else case.length - 1, -1)


WHOLE = Effort()
QUICK = Effort(widest=16384, starts=4)
"""Seconds for a setting of published size."""


@dataclass(frozen=True)
class Measured:
    """A case as it was enumerated, perhaps shorter than asked, and the largest distance over the starts."""

    case: Case
    total_variation: float


def measure(method: Method[Any], case: Case, effort: Effort = WHOLE) -> Measured:
    """`distance` within an effort.

    Raises:
        EnumerationLimit: the shortest output branches too much.
    """
    *longer, last = (replace(case, length=length) for length in effort.lengths(case))
    for tried in longer:
        with suppress(EnumerationLimit):
            return Measured(tried, max(distance(method, tried, draws) for draws in effort.draws(method)))
    return Measured(last, max(distance(method, last, draws) for draws in effort.draws(method)))


@dataclass(frozen=True)
class Caught:
    """A planted bug: its total variation, and where that was largest first."""

    why: str
    where: str
    total_variation: float
    case: str

    @property
    def caught(self) -> bool:
        """It shows."""
        return self.total_variation > CAUGHT


@dataclass(frozen=True)
class Proof:
    """What enumeration says of one setting of a method.

    Args:
        total_variation: the maximum over the cases; case: where. verdict: exact, approximate or broken.
        plants: bugs tried on this setting, stopping at the first that shows. cases: as they were enumerated.
    """

    method: Method[Any]
    claim: Claim
    total_variation: float
    case: str
    verdict: str
    mutants: tuple[Caught, ...] = field(default=())
    cases: tuple[Case, ...] = ()

    @property
    def planted(self) -> bool:
        """Some planted bug shows on this setting."""
        return any(mutant.caught for mutant in self.mutants)

    def plain(self, name: str) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "method": name,
            "label": label(self.method),
            "params": parameters(self.method),
            "claim": self.claim.name,
            "total_variation": self.total_variation,
            "case": self.case,
            "verdict": self.verdict,
            "planted": self.planted,
            "plants": [{**vars(mutant), "caught": mutant.caught} for mutant in self.mutants],
        }


def prove(
    method: Method[Any], cases: Sequence[Case] | None = None, mutants: bool = True, effort: Effort = WHOLE
) -> Proof:
    """Enumerate a method on every case, and plant its bugs.

    Raises:
        EnumerationLimit: the setting branches too much; verify it at a smaller window.
    """
    claim, cases = method.claim, cases_of(method) if cases is None else cases
    asked = [case for case in cases if claim is not Claim.SAME_GREEDY or case.sampling.temperature == 0]
    if not asked:
        raise UsageError("a method that claims greedy equality only needs a case at T = 0, and none was given")
    found = [measure(method, case, effort) for case in asked]
    worst = max(found, key=lambda each: each.total_variation)
    clean = {str(each.case): each.total_variation for each in found}
    done = tuple(each.case for each in found)
    tried: list[Caught] = []
    for mutant in method.mutants if mutants else ():
        tried.append(_plant(method, mutant, done, clean, effort))
        if tried[-1].caught:
            break
    verdict = word(claim, worst.total_variation)
    return Proof(method, claim, worst.total_variation, str(worst.case), verdict, tuple(tried), done)


def word(claim: Claim, total_variation: float) -> str:
    """exact, approximate (by design) or broken (claims exactness and fails)."""
    if claim is Claim.APPROXIMATE:
        return "approximate"
    return "exact" if total_variation < EXACT else "broken"


def prove_plants(kind: type[Method[Any]], settings: Sequence[Method[Any]]) -> list[Caught]:
    """Each planted bug of a method, on the first of its exact settings on which it shows.

    Of a method that has none, all settings are tried; what counts there is how far a bug moves their own distance.
    """
    exact = [method for method in settings if method.claim is not Claim.APPROXIMATE]
    tried = exact or (list(settings) if kind.mutants else [])
    clean = [{} if exact else {str(case): distance(method, case) for case in cases_of(method)} for method in tried]
    out = []
    for mutant in kind.mutants:
        best: Caught | None = None
        for method, distances in zip(tried, clean, strict=True):
            found = _plant(method, mutant, cases_of(method), distances)
            best = found if best is None or found.total_variation > best.total_variation else best
            if best.caught:
                break
        if best is not None:
            out.append(best)
    return out


def _plant(
    method: Method[Any], mutant: Mutant, cases: Sequence[Case], clean: dict[str, float], effort: Effort = WHOLE
) -> Caught:
    """The total variation that a bug adds, on the first case where it passes ``CAUGHT``."""
    worst, where = 0.0, ""
    with planted(mutant):
        for case in cases:
            try:
                tv = abs(measure(method, case, effort).total_variation - clean.get(str(case), 0.0))
            except ContractError:
                tv = 1.0  # the contract's own check saw it before any law could
            if tv > worst:
                worst, where = tv, str(case)
            if worst > CAUGHT:
                break
    return Caught(mutant.why, mutant.where, worst, where)
