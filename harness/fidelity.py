"""Is it still the same sampler? Exact laws on tabular models, planted bugs, and greedy equality on real ones."""

from __future__ import annotations

import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from harness.backbone import Backbone
from harness.backbones.masked_tabular import MaskedTabular
from harness.backbones.tabular import Tabular
from harness.clock import CpuClock, Stopwatch
from harness.contracts import Need
from harness.draws import Draws
from harness.enumerate import EnumeratingDraws, Law, output_law
from harness.errors import ContractError, EnumerationLimit, UsageError
from harness.law import Sampling, warp
from harness.loop import open_run
from harness.method import Claim, Method, Plant, Run, label, parameters
from harness.session import Session
from harness.task import Prompt

EXACT = 1e-12
"""Total variation below which a law is the reference's: rounding of fp64 sums of some thousand terms."""
CAUGHT = 1e-3
"""Total variation that a planted bug must pass on at least one model."""


@dataclass(frozen=True)
class Case:
    """A tabular model, a way to sample, and an output length. ``masked``: a masked model, whose last id is the mask."""

    vocabulary: int
    length: int
    seed: int
    sampling: Sampling
    eos: tuple[int, ...] = ()
    prompt: tuple[int, ...] = (0, 1, 0)
    grid: tuple[int, ...] = ()
    masked: bool = False

    def backbone(self) -> Tabular | MaskedTabular:
        """The model."""
        if self.masked:
            return MaskedTabular("masked_tabular", {"vocabulary": self.vocabulary, "seed": self.seed})
        params = {"vocabulary": self.vocabulary, "seed": self.seed, "eos": self.eos, "grid": self.grid}
        return Tabular("tabular", params)

    @property
    def outputs(self) -> int:
        """How many different ones there can be."""
        forced = 0 if len(self.grid) < 3 else self.length // (self.grid[1] + 1)
        return int((self.vocabulary - (len(self.grid) == 3 or self.masked)) ** (self.length - forced))

    def __str__(self) -> str:
        parts = [f"V={self.vocabulary}", f"length={self.length}", f"seed={self.seed}"]
        parts.append(f"T={self.sampling.temperature:g}")
        parts += [f"top_k={self.sampling.top_k}"] if self.sampling.top_k else []
        parts += [f"top_p={self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
        parts += ["eos"] if self.eos else []
        parts += ["masked"] if self.masked else []
        return " ".join(parts + ([f"grid={'x'.join(map(str, self.grid[:2]))}"] if self.grid else []))


CASES = (
    Case(2, 3, 10, Sampling(1.0)),
    Case(3, 3, 11, Sampling(1.0), eos=(2,)),
    Case(3, 3, 19, Sampling(0.0)),
    Case(3, 3, 20, Sampling(1.0, top_k=2)),
    Case(3, 4, 12, Sampling(0.0)),
    Case(2, 5, 13, Sampling(0.0), eos=(1,)),
    Case(3, 3, 14, Sampling(0.5)),
    Case(3, 4, 15, Sampling(1.0, top_k=2)),
    Case(3, 3, 16, Sampling(1.0, top_p=0.8)),
    Case(2, 5, 17, Sampling(1.0)),
    Case(3, 4, 18, Sampling(1.0)),
)
"""Smallest first, so that a planted bug is caught early."""

GRID_CASES = (
    Case(3, 6, 21, Sampling(1.0), grid=(2, 2, 2)),
    Case(2, 4, 22, Sampling(1.0), grid=(2, 2)),
    Case(3, 6, 23, Sampling(0.0), grid=(2, 2, 2)),
)
"""Pictures, two of them with forced ends of rows: for methods that need a grid, and for settings that look at it."""

MASKED_CASES = (
    Case(3, 4, 31, Sampling(1.0), masked=True),
    Case(3, 4, 32, Sampling(0.0), masked=True),
    Case(3, 4, 33, Sampling(0.5), prompt=(0, 1), masked=True),
    Case(4, 4, 34, Sampling(1.0, top_p=0.8), masked=True),
)
"""Of two or three tokens and a mask; the length is what 1, 2 and 4 steps divide."""


def reference_law(backbone: Backbone, prompt: Sequence[int], length: int, sampling: Sampling) -> Law:
    """The chain rule, with a cache of its own for every prefix: no method's code, nothing to roll back."""
    law: Law = {}
    opening = backbone.open(Prompt("", tokens=tuple(prompt)))

    def extend(output: tuple[int, ...], weight: float) -> None:
        if len(output) == length or (output and output[-1] in backbone.offers.eos):
            law[output] = weight
            return
        tokens = [*prompt, *output]
        session = Session(opening.cache(), backbone.offers, tokens, stopwatch=Stopwatch(CpuClock()))
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
    plants: tuple[Caught, ...] = field(default=())
    cases: tuple[Case, ...] = ()

    @property
    def planted(self) -> bool:
        """Some planted bug shows on this setting."""
        return any(plant.caught for plant in self.plants)

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
            "plants": [{**vars(plant), "caught": plant.caught} for plant in self.plants],
        }


def cases_of(method: Method[Any], outputs: int | None = None) -> tuple[Case, ...]:
    """Texts and pictures, pictures or masked models alone for a method that needs them; of at most so many outputs."""
    cases: tuple[Case, ...] = GRID_CASES if Need.GRID in method.needs else CASES + GRID_CASES
    cases = MASKED_CASES if Need.BIDIRECTIONAL in method.needs else cases
    return tuple(case for case in cases if outputs is None or case.outputs <= outputs)


def prove(
    method: Method[Any], cases: Sequence[Case] | None = None, plants: bool = True, effort: Effort = WHOLE
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
    for plant in method.plants if plants else ():
        tried.append(_plant(method, plant, done, clean, effort))
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
    tried = exact or (list(settings) if kind.plants else [])
    clean = [{} if exact else {str(case): distance(method, case) for case in cases_of(method)} for method in tried]
    out = []
    for plant in kind.plants:
        best: Caught | None = None
        for method, distances in zip(tried, clean, strict=True):
            found = _plant(method, plant, cases_of(method), distances)
            best = found if best is None or found.total_variation > best.total_variation else best
            if best.caught:
                break
        if best is not None:
            out.append(best)
    return out


def _plant(
    method: Method[Any], plant: Plant, cases: Sequence[Case], clean: dict[str, float], effort: Effort = WHOLE
) -> Caught:
    """The total variation that a bug adds, on the first case where it passes ``CAUGHT``."""
    worst, where = 0.0, ""
    with planted(plant):
        for case in cases:
            try:
                tv = abs(measure(method, case, effort).total_variation - clean.get(str(case), 0.0))
            except ContractError:
                tv = 1.0  # the contract's own check saw it before any law could
            if tv > worst:
                worst, where = tv, str(case)
            if worst > CAUGHT:
                break
    return Caught(plant.why, plant.where, worst, where)


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """While inside, the real function runs with one line changed.

    The function's code object is swapped, so every module that imported the function sees the bug.

    Raises:
        ContractError: the text to replace is not on exactly one line of the function.
    """
    function = _find(plant.where)
    source = textwrap.dedent(inspect.getsource(function))
    lines = [number for number, line in enumerate(source.splitlines()) if plant.old in line]
    if len(lines) != 1:
        raise ContractError(
            f"the planted bug {plant.why!r} looks for {plant.old!r} on one line of {plant.where} "
            f"and finds it on {len(lines)}; bring the Plant up to date with the function"
        )
    scope: dict[str, Any] = {}
    exec(
        compile(source.replace(plant.old, plant.new), f"<planted: {plant.why}>", "exec"),
        function.__globals__,
        scope,
    )
    patched = inspect.unwrap(scope[function.__name__])
    original = function.__code__
    function.__code__ = patched.__code__
    try:
        yield
    finally:
        function.__code__ = original


def _find(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
        found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    function = inspect.unwrap(found)
    if not isinstance(function, FunctionType):
        raise ContractError(f"a planted bug names {where}, which is not a Python function")
    return function


@dataclass(frozen=True)
class Divergence:
    """Where two outputs part.

    Args:
        at: first differing index, or None. agreement: longest common prefix / the longer length, 1 if equal.
    """

    at: int | None
    agreement: float


def diverge(ours: Sequence[int], theirs: Sequence[int]) -> Divergence:
    """Compare an output with the baseline's. One that ends early differs at its end."""
    longest = max(len(ours), len(theirs))
    for index in range(longest):
        if index >= min(len(ours), len(theirs)) or ours[index] != theirs[index]:
            return Divergence(index, index / longest)
    return Divergence(None, 1.0)
