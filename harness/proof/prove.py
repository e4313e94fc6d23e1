"""Is it still the same sampler? A method's exact output distribution on small models, compared with its claim."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim, Method, label, parameters
from stridebench.harness.core.run import open_run
from stridebench.harness.errors import EnumerationLimit, StrideError, UsageError
from stridebench.harness.proof.cases import Case, cases_of, wider_cases_of
from stridebench.harness.proof.distance import (
    DRAWN,
    WHOLE,
    Effort,
    Measured,
    distance,
    measure,
    reference_of,
    toy_drafter,
)
from stridebench.harness.proof.kept_laws import sheet
from stridebench.harness.proof.mutants import TriedMutant, try_mutant

EXACT = 1e-12
"""Total variation below which two distributions are equal: rounding of fp64 sums of some thousand terms."""


class BugRow(TypedDict):
    """An injected bug in ``--json``: the fields of `TriedMutant`; alone, it names its method too."""

    mutant: NotRequired[bool]
    method: NotRequired[str]
    why: str
    where: str
    total_variation: float
    case: str
    caught: bool


class SettingRow(TypedDict):
    """A setting of a method in ``--json``."""

    method: str
    label: str
    params: Mapping[str, object]
    claim: str
    total_variation: float | None
    case: str
    verdict: str


class ProofRow(SettingRow):
    """A setting on the fixed cases, or on a part of them, and how long it was enumerated."""

    hint: str
    planted: bool
    plants: list[BugRow]
    seconds: NotRequired[float]


@dataclass(frozen=True)
class Proof:
    """The result of enumerating one setting of a method.

    Args:
        total_variation: the maximum over the cases, or None if an approximate method was its reference in all of them.
        case: the case of that maximum, or why there is none.
        verdict: exact, declared, approximate or broken.
        mutants: those tried on this setting, stopping at the first that is caught.
        hint: the likely cause of a broken verdict, or "" if none was seen.
    """

    method: Method[Any]
    claim: Claim
    total_variation: float | None
    case: str
    verdict: str
    mutants: tuple[TriedMutant, ...] = ()
    cases: tuple[Case, ...] = ()
    hint: str = ""

    @property
    def catches(self) -> bool:
        """Whether some mutant is caught on this setting."""
        return any(mutant.caught for mutant in self.mutants)

    def plain(self, name: str) -> ProofRow:
        """Return the row of ``--json``."""
        return {
            "method": name,
            "label": label(self.method),
            "params": parameters(self.method),
            "claim": self.claim.name,
            "total_variation": self.total_variation,
            "case": self.case,
            "verdict": self.verdict,
            "hint": self.hint,
            "planted": self.catches,
            "plants": [bug_row(mutant) for mutant in self.mutants],
        }


def bug_row(bug: TriedMutant) -> BugRow:
    """Return the row of an injected bug."""
    return {
        "why": bug.why,
        "where": bug.where,
        "total_variation": bug.total_variation,
        "case": bug.case,
        "caught": bug.caught,
    }


def prove(
    method: Method[Any],
    cases: Sequence[Case] | None = None,
    mutants: bool = True,
    effort: Effort = WHOLE,
    later: Sequence[Case] = (),
    part: str = "",
) -> Proof:
    """Enumerate a method on every case, and try its mutants until one is caught.

    Args:
        later: cases of another proof of this setting, on which the mutants are tried that ``cases`` do not catch.
        part: which part of the cases of the setting these are, for the kept laws.

    Raises:
        EnumerationLimit: the setting branches too much; verify it at a smaller window.
    """
    claim, cases = method.claim, cases_of(method) if cases is None else cases
    cases = [case for case in cases if claim is not Claim.SAME_GREEDY or case.sampling.temperature == 0]
    if claim is Claim.DECLARED:
        cases = [case for case in cases if case.batch == 1]  # rows on threads are not watched step by step
    if not cases:
        raise UsageError(f"a method of the claim {claim.name} fits none of the cases that were given")
    if claim is Claim.APPROXIMATE:
        measured, reason = _exercised(method, cases, effort, part)
        if not measured:
            return Proof(method, claim, None, reason, "approximate")
    else:
        measured = _measured(method, cases, effort, part)
    worst = max(measured, key=lambda result: result.total_variation)
    tried = _tried(method, measured, effort) if mutants else []
    if mutants and later and not any(mutant.caught for mutant in tried):
        tried = _tried(method, [*measured, *_measured(method, later, effort, part)], effort)
    verdict = verdict_of(claim, worst.total_variation)
    enumerated = tuple(result.case for result in measured)
    hint = foreign_randomness(method, enumerated) if verdict == "broken" else ""
    return Proof(method, claim, worst.total_variation, str(worst.case), verdict, tuple(tried), enumerated, hint)


def _measured(method: Method[Any], cases: Sequence[Case], effort: Effort, part: str) -> list[Measured]:
    measured = []
    with sheet(method, part=part):
        for case in cases:
            with suppress(EnumerationLimit) if case.few else nullcontext():  # they are there for methods that they fit
                measured.append(measure(method, case, effort))
    return measured


def _exercised(method: Method[Any], cases: Sequence[Case], effort: Effort, part: str) -> tuple[list[Measured], str]:
    """Measure an approximate method on the cases, or on a wider one if it is its reference in all of them.

    Returns:
        The cases as enumerated; none of them, and the reason, if no case shows what makes the method approximate.
    """
    measured: list[Measured] = []
    reason = "it decodes every enumerated case as its reference does"
    with sheet(method, part=part):
        for case in cases:
            try:
                measured.append(measure(method, case, effort))
            except UsageError as error:  # the model is too small for the setting
                reason = str(error)
            except EnumerationLimit:
                if not case.few:
                    raise
        if reference_of(method) == method or any(one.total_variation >= EXACT for one in measured):
            return measured, ""
        for case in wider_cases_of(method):
            with suppress(UsageError, EnumerationLimit):
                draws = replace(DRAWN, starts=effort.starts).draws(method)
                wider = Measured(case, max(distance(method, case, one) for one in draws))
                if wider.total_variation >= EXACT:
                    return [*measured, wider], ""
    return [], f"TV not measured: {reason}"


def _tried(method: Method[Any], measured: Sequence[Measured], effort: Effort) -> list[TriedMutant]:
    """Try the mutants of a method, up to the first that is caught."""
    clean = {str(result.case): result.total_variation for result in measured}
    tried: list[TriedMutant] = []
    for mutant in method.mutants:
        tried.append(try_mutant(method, mutant, [result.case for result in measured], clean, effort))
        if tried[-1].caught:
            break
    return tried


def verdict_of(claim: Claim, total_variation: float) -> str:
    """Return exact, declared, approximate (by design) or broken (claims one of the first two and fails)."""
    if claim is Claim.DECLARED and total_variation < EXACT:
        return "declared"
    if claim is Claim.APPROXIMATE:
        return "approximate"
    return "exact" if total_variation < EXACT else "broken"


# Whether a method draws from a source of randomness that the harness does not control, such as torch's generator.


TRIES = 5
"""Seeds that are each decoded twice on every case, since a cold case has nearly one output."""
GENERATORS: dict[str, Callable[[], object]] = {
    "torch's global generator": lambda: torch.get_rng_state().numpy().tobytes(),
    "numpy's global generator": lambda: repr(np.random.get_state()),
    "Python's module random": random.getstate,
}


class _GeneratorWatch(TorchFunctionMode):
    """Store the line of a method that first moves torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.line = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not self.line and not torch.equal(before, torch.default_generator.get_state()):
            self.line = _line(sys._getframe(1))
        return result


def _line(frame: Any) -> str:
    """Return the file and line of the innermost frame outside torch."""
    home = str(Path(torch.__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith(home):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def foreign_randomness(method: Method[Any], cases: Sequence[Case]) -> str:
    """Decode each case twice with the same draws, for several seeds, until two outputs differ.

    Returns:
        A sentence that says that two outputs differ, and which generator moved at which line if that was seen; "" if
        all pairs are alike.
    """
    watch = _GeneratorWatch()

    def output(case: Case, seed: int) -> tuple[int, ...]:
        backbone = case.backbone()
        draws = SeededDraws(seed, "proof", "foreign", 0)
        run = open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)
        return decode(method, run, watched=False).tokens

    before = {name: state() for name, state in GENERATORS.items()}
    differs = False
    with suppress(StrideError), watch:
        differs = any(output(case, seed) != output(case, seed) for case in cases for seed in range(TRIES))
    if not differs:
        return ""
    moved = [name for name, state in GENERATORS.items() if state() != before[name]]
    source = (
        f"{' and '.join(moved)} moved{f', at {watch.line}' if watch.line else ''}"
        if moved
        else ("no global generator moved, so it may hold a generator or state of its own between decodes")
    )
    return f"two decodes with the same draws differ: {source}. Draw every random choice with `run.draws`."
