"""How far the outputs of a method are from those of its reference: total variation of exact laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.batch import Batch, Slot
from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, EnumerationLimit
from stridebench.harness.machine.surroundings import on_one_core
from stridebench.harness.plan.cells import MASKED_BASELINE
from stridebench.harness.proof.cases import Case, order_of
from stridebench.harness.proof.enumerate import EnumeratingDraws, Law, output_law
from stridebench.harness.proof.kept_laws import kept, setting
from stridebench.harness.registry import METHODS

MOST = 5_000
"""Decodes of a batch in one enumeration; each starts anew, since rows on threads cannot be copied."""
BETWEEN = -1
"""Stands between the outputs of two rows in a joint output; no id is negative."""


def row_law(
    method: Method[Any], case: Case, load_drafter: Callable[[str], Backbone], draws: EnumeratingDraws | None = None
) -> Law:
    """Return the exact law of a row's output, given the draws of the others; the case's seed says which row.

    Raises:
        EnumerationLimit: over 5,000 outcomes.
    """
    row = case.seed % case.batch
    return _law(
        method, case, load_drafter, {row: EnumeratingDraws() if draws is None else draws}, prompts_of(case, row)
    )


def joint_law(
    method: Method[Any], case: Case, load_drafter: Callable[[str], Backbone], draws: EnumeratingDraws | None = None
) -> Law:
    """Return the exact law of all outputs of a batch together, as `joined`: every outcome of the draws of every row.

    Raises:
        EnumerationLimit: over 5,000 outcomes.
    """
    first = EnumeratingDraws() if draws is None else draws
    rows = {row: first.sharing() if row else first for row in range(case.batch)}
    return _law(method, case, load_drafter, rows, prompts_of(case))


def prompts_of(case: Case, row: int = 0) -> list[tuple[int, ...]]:
    """Return the prompts of a batch: the case's prompt for ``row``, beginnings of it for the others."""
    return [case.prompt[: len(case.prompt) - (number - row) % len(case.prompt)] for number in range(case.batch)]


def joined(outputs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the outputs of several rows as one, with -1 between them."""
    first, *others = outputs
    return sum(((BETWEEN, *output) for output in others), first)


@torch.inference_mode()
def _law(
    method: Method[Any],
    case: Case,
    load_drafter: Callable[[str], Backbone],
    rows: Mapping[int, EnumeratingDraws],
    prompts: list[tuple[int, ...]],
) -> Law:
    """Return the law of the outputs of ``rows``, whose draws share a script; the other rows draw from seeds."""
    backbone, script = case.backbone(), next(iter(rows.values())).script
    law: Law = {}
    scripts: list[list[int]] = [[]]
    decodes = 0

    def job(number: int, slot: Slot | None) -> tuple[int, ...]:
        own: Draws = rows[number] if number in rows else SeededDraws(case.seed, "proof", str(number), 0)
        models = Models(backbone, load_drafter, prompts[number], slot=slot)
        return decode(method, Run.of(models, case.sampling, case.length, own), watched=False).tokens

    with on_one_core():  # the rows take turns, and are handed over thousands of times
        while scripts:
            script.replay(scripts.pop(), scripts)
            for draws in rows.values():
                draws.begin({})
            results = Batch[tuple[int, ...]](case.batch).run([partial(job, number) for number in range(case.batch)])
            if failed := next((result for result in results if isinstance(result, Exception)), None):
                raise failed
            outputs = [result for result in results if isinstance(result, tuple)]
            output = joined(outputs[row] for row in rows)
            law[output] = law.get(output, 0.0) + script.weight
            decodes += 1
            if decodes + len(scripts) > MOST:
                of = "one row" if len(rows) < case.batch else "all rows"
                raise EnumerationLimit(
                    f"over {MOST} outcomes of {of} in a batch of {case.batch}; take a shorter output"
                )
    return law


@torch.inference_mode()
def reference_law(
    backbone: Backbone, prompt: Sequence[int], length: int, sampling: Sampling, order: Sequence[int] = ()
) -> Law:
    """Apply the chain rule, with a new cache for every prefix: no method's code runs, and no cache is rolled back.

    Args:
        order: cells of an order-free backbone's picture, by raster index, which are read in this order, then the query
            of the next one; empty for other backbones.
    """
    law: Law = {}
    encoded = backbone.open(Prompt("", tokens=tuple(prompt)))
    cells, queries = [cell for cell in order if cell < length], backbone.capabilities.queries

    def fill(values: tuple[int, ...], weight: float) -> None:
        if len(values) == length:
            law[tuple(value for _, value in sorted(zip(cells, values, strict=True)))] = weight
            return
        read = cells[: len(values) + 1]
        ids = torch.tensor([*prompt, *values, queries[read[-1]]])
        positions = torch.tensor([*range(len(prompt)), *(len(prompt) + cell for cell in read)])
        logits = encoded.cache().extend(Window(ids, positions, 0, None, 1)).logits
        for token, p in enumerate(warp(logits, sampling)[0].tolist()):
            if p > 0:
                fill((*values, token), weight * p)

    def extend(output: tuple[int, ...], weight: float) -> None:
        if len(output) == length or (output and output[-1] in backbone.capabilities.eos):
            law[output] = weight
            return
        tokens = [*prompt, *output]
        session = Session(encoded.cache(), backbone.capabilities, tokens, stopwatch=Stopwatch(CpuClock()))
        for token, p in enumerate(warp(session.forward(), sampling)[0].tolist()):
            if p > 0:
                extend((*output, token), weight * p)

    (fill if order else extend)((), 1.0)
    return law


def total_variation(a: Law, b: Law) -> float:
    """Return half the sum of absolute differences: the largest difference in the probability of any event."""
    return 0.5 * sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys())


def method_law(method: Method[Any], case: Case, draws: EnumeratingDraws | None = None) -> Law:
    """Return the exact law of a method's output on a case's model; ``draws``: with limits or pins."""
    draws = EnumeratingDraws() if draws is None else draws
    return kept(f"{setting(method)} {case!r} {draws.limits}", lambda: _enumerated(method, case, draws))


def _enumerated(method: Method[Any], case: Case, draws: EnumeratingDraws) -> Law:
    backbone = case.backbone()
    if case.joint:
        return joint_law(method, case, toy_drafter(backbone), draws)
    if case.batch > 1:
        return row_law(method, case, toy_drafter(backbone), draws)
    memory = _decoded_before(method, case, backbone) if case.state == "prefix" or method.remembers else []

    def opened(draws: Draws) -> Run:
        models = Models(backbone, toy_drafter(backbone), case.prompt, memory=memory)
        return Run.of(models, case.sampling, case.length, draws)

    return output_law(method, opened, draws)


def _decoded_before(method: Method[Any], case: Case, backbone: Backbone) -> list[tuple[int, ...]]:
    """Decode the end of the case's prompt, its reverse and itself, whose blocks and outputs later decodes find."""
    outputs: list[tuple[int, ...]] = []
    for number, prompt in enumerate((case.prompt[2:], case.prompt[::-1], case.prompt)):
        draws = SeededDraws(case.seed, "proof", str(number), 0)
        models = Models(backbone, toy_drafter(backbone), prompt, memory=tuple(outputs))
        outputs.append(decode(method, Run.of(models, case.sampling, case.length, draws), watched=False).tokens)
    return outputs


def toy_drafter(backbone: Backbone) -> Callable[[str], Backbone]:
    """Return a loader: any name opens another random model of the same vocabulary; ``self`` opens the model itself."""
    return lambda name: backbone if name == "self" else backbone.variant({"drafter": name})


def distance(method: Method[Any], case: Case, draws: EnumeratingDraws | None = None) -> float:
    """Return the total variation between a method and its reference on a case; ``draws``: with limits or pins.

    The reference of a method that declares its distributions are these, step by step (see `declared_distance`).
    """
    if method.claim is Claim.DECLARED:
        draws = EnumeratingDraws() if draws is None else draws
        what = f"declared {setting(method)} {case!r} {draws.limits}"
        return kept(what, lambda: {(): declared_distance(method, case, draws)})[()]
    expected = law_to_match(reference_of(method), case, order_of(method, case))
    return total_variation(method_law(method, case, draws), expected)


class _Watched:
    """A method whose last acceptance can be looked at."""

    def __init__(self, method: Method[Any]) -> None:
        self._method = method
        self.last: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def step(self, run: Run, state: Any) -> Any:
        self.last = self._method.step(run, state)
        return self.last


def declared_distance(method: Method[Any], case: Case, draws: EnumeratingDraws) -> float:
    """Return how far the tokens of each step are from the distributions that the method declares for them.

    Given the state before a step and the drafts kept so far, the next token must have the declared distribution of its
    row, and the target's distribution in that row must be the chain rule's. The total variations of both are weighed by
    how often a row is reached and added up; the output's distance to the declared process is at most their sum.
    """
    watched, backbone = _Watched(method), case.backbone()
    rows: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, ...], Tensor, Tensor, Tensor]] = {}

    def watch(weight: float, number: int, before: tuple[int, ...], emitted: tuple[int, ...]) -> None:
        acceptance = watched.last
        if not isinstance(acceptance, Acceptance) or acceptance.declared is None:
            raise ContractError(
                f"{type(method).__name__} claims DECLARED and a step declares nothing; set `declared` of its acceptance"
            )
        declared = acceptance.declared
        for place, row in enumerate([0, *(node + 1 for node in acceptance.read().path)]):
            key = (number, emitted[:place])
            if key not in rows:
                output = (*case.prompt, *before, *emitted[:place])
                rows[key] = output, declared.pi[row], declared.p[row], torch.zeros_like(declared.pi[row])
            rows[key][3][emitted[place]] += weight

    def opened(draws: Draws) -> Run:
        return open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)

    output_law(watched, opened, draws, watch)  # type: ignore[arg-type]  # it passes on all of the method
    distance = 0.0
    encoded = _alone(case).backbone().open(Prompt("", tokens=case.prompt))
    for output, pi, p, weights in rows.values():
        session = Session(encoded.cache(), backbone.capabilities, list(output), stopwatch=Stopwatch(CpuClock()))
        true = warp(session.forward(), case.sampling)[0]
        difference = (weights / weights.sum() - pi).abs().sum() + (p - true).abs().sum()
        distance += float(weights.sum() * difference) / 2
    return distance


def _alone(case: Case) -> Case:
    """Return the case without blocks of other sequences, which a reference does not take over."""
    return replace(case, state="") if case.state == "prefix" else case


def reference_of(method: Method[Any]) -> Method[Any] | None:
    """Return a method's reference setting, or None if it is the target decoded autoregressively.

    A masked model has no distribution of a next token, so there the reference is `masked_diffusion` at one token a
    step. No other method chooses its reference.

    Raises:
        ContractError: the method names another reference.
    """
    reference = method.reference
    masked = Requirement.BIDIRECTIONAL in method.requirements
    if reference is None:
        baseline: Method[Any] | None = METHODS.get(MASKED_BASELINE)() if masked else None
        return baseline
    if masked and type(reference) is METHODS.get(MASKED_BASELINE) and reference.reference == reference:
        return reference
    right = f"{MASKED_BASELINE} at one token a step" if masked else "None, which is the target's distribution"
    raise ContractError(
        f"{type(method).__name__} names the reference {reference!r:.200}, and a method does not choose its "
        f"reference, which must be {right}"
    )


_memos: list[dict[tuple[Method[Any] | None, Case, tuple[int, ...]], Law]] = [{}]
"""Laws to match; the last one holds those of the code as it runs now."""


@contextmanager
def changed_code() -> Iterator[None]:
    """Enumerate references anew while inside, since a mutant may change the code that they use."""
    _memos.append({})
    try:
        yield
    finally:
        _memos.pop()


def law_to_match(reference: Method[Any] | None, case: Case, order: tuple[int, ...] = ()) -> Law:
    """Return the law of a method's `reference` on a case, by default the chain rule's in an order; enumerated once."""
    by = "chain rule" if reference is None else f"reference {setting(reference)}"
    by += f" in the order {order}" if order else ""
    return kept(f"{by} {case!r}", lambda: _remembered(reference, case, order))


def _remembered(reference: Method[Any] | None, case: Case, order: tuple[int, ...]) -> Law:
    memo, key = _memos[-1], (reference, case, order)
    if key not in memo:
        if reference is not None:
            memo[key] = _enumerated(reference, case, EnumeratingDraws())
        else:
            prompts = prompts_of(case) if case.joint else [case.prompt]
            alone = _alone(case).backbone()
            laws = [reference_law(alone, prompt, case.length, case.sampling, order) for prompt in prompts]
            outcomes = product(*(law.items() for law in laws))
            memo[key] = {joined(one for one, _ in rows): math.prod(weight for _, weight in rows) for rows in outcomes}
    return memo[key]


@dataclass(frozen=True)
class Effort:
    """The limits of a proof.

    Args:
        widest: the most outcomes of the draws of one step; if a case has more, it is made one token shorter, and so on.
        most: the most outcomes of all steps together; a case with more is shortened in the same way.
        starts: seeds that answer the method's `pinned` streams, each in a separate proof; 0 to enumerate their
            outcomes too.
    """

    widest: float = math.inf
    starts: int = 0
    most: float = math.inf

    def draws(self, method: Method[Any]) -> Iterator[EnumeratingDraws]:
        """Yield the draws of each proof."""
        pinned = method.pinned if self.starts else frozenset()
        for start in range(self.starts if pinned else 1):
            yield EnumeratingDraws(self.widest, pinned, start, self.most)

    def tries(self, case: Case) -> list[Case]:
        """Return ever shorter outputs, with at least one drafted token; the first one that fits is taken.

        Rows that branch too much to be enumerated together are enumerated one by one.
        """
        shortest = min(1, case.length - 1) if self.widest < math.inf else case.length - 1
        shortest = 0 if case.few and case.length == 2 else shortest
        shorter = [replace(case, length=length) for length in range(case.length, shortest, -1)]
        return [case, *(replace(one, joint=False) for one in shorter)] if case.joint else shorter


WHOLE = Effort()
WIDE = Effort(widest=2_000)
"""For a case of more than `MANY` outputs in place of `WHOLE`: no shipped setting has over 1,500 outcomes a step there.

A method that draws a token of the target for every draft at once has so many that the case takes a minute.
"""
MANY = 64
QUICK = Effort(widest=16384, starts=4)
"""Seconds for a setting of published size."""
BRIEF = Effort(widest=256, starts=4, most=5_000)
"""For `few` outputs of long texts or large vocabularies: a second at most."""
DRAWN = Effort(widest=4096, starts=2, most=5_000)
"""A second or two for a random case."""


@dataclass(frozen=True)
class Measured:
    """A case as it was enumerated, perhaps shorter than asked, and the largest distance over the starts."""

    case: Case
    total_variation: float


def measure(method: Method[Any], case: Case, effort: Effort = WHOLE) -> Measured:
    """Measure the `distance` within an effort, a small one for a case of few outputs.

    Raises:
        EnumerationLimit: the shortest output branches too much.
    """
    effort = BRIEF if case.few else WIDE if effort == WHOLE and case.outputs > MANY else effort
    *longer, last = effort.tries(case)
    for tried in longer:
        with suppress(EnumerationLimit):
            return Measured(tried, max(distance(method, tried, draws) for draws in effort.draws(method)))
    return Measured(last, max(distance(method, last, draws) for draws in effort.draws(method)))
