"""Injecting a bug into a real function while a check runs, and measuring whether the check catches it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.errors import ContractError, EnumerationLimit
from stridebench.harness.proof.cases import Case, cases_of
from stridebench.harness.proof.distance import WHOLE, Effort, changed_code, law_to_match, measure, reference_of
from stridebench.harness.proof.kept_laws import sheet
from stridebench.harness.registry import METHODS

CAUGHT = 1e-3
"""Total variation that a mutant must exceed on at least one model."""
FIRST_CASES = 4
"""Small cases that a mutant is tried on first."""
TOY = "stridebench.harness.backbones.toy"
TARGET_MUTANTS: Mapping[str, tuple[Mutant, ...]] = {
    "prompt_lookup": (
        Mutant(
            "stridebench.harness.backbones.slots.snapshots:SnapshotCache.keep",
            "if self._length < self._held:",
            "if entries and self._length < self._held:",
            "stale_state_after_empty_draft: a running state is not taken back if no draft was kept",
            "recurrent",
        ),
    ),
    "speculative": (
        Mutant(
            f"{TOY}:TabularCache._forbid",
            "len(logits) :]",
            "len(logits) : -1]",
            "bonus_skips_grammar: the last row of a window is not masked",
            "grammar",
        ),
        Mutant(
            f"{TOY}:TabularCache.keep",
            "self.read = self.read[:length] + [self.read[length + entry] for entry in entries]",
            "self.read = self.read[: length + len(entries)] if entries else self.read",
            "the place in a grammar is not taken back if no draft was kept",
            "grammar",
        ),
        Mutant(
            f"{TOY}:TabularCache._forbid",
            "self.read[len(self.read) - len(logits) :]",
            "self.read[len(self.read) - len(logits) - (len(logits) > 1) :][: len(logits)]",
            "the rows of drafts are masked by the grammar's place one token before",
            "grammar",
        ),
        Mutant(
            f"{TOY}:block_key",
            "tokens[:end]",
            "tokens[end - BLOCK : end]",
            "a block of a prefix cache is found by its own tokens, not by all before its end",
            "prefix",
        ),
    ),
}
"""Bugs in the cache of a target, by the method that is known to show them. Their references run without the bug."""


@dataclass(frozen=True)
class TriedMutant:
    """A mutant that was injected: the total variation that it adds, and the case in which that was largest."""

    why: str
    where: str
    total_variation: float
    case: str

    @property
    def caught(self) -> bool:
        """Whether the check sees it."""
        return self.total_variation > CAUGHT


def mutants_of(name: str) -> tuple[Mutant, ...]:
    """Return the mutants of a method's own code, and those of the target's cache that it shows."""
    own: tuple[Mutant, ...] = METHODS.get(name).mutants
    return own + TARGET_MUTANTS.get(name, ())


def try_one(mutant: Mutant, settings: Sequence[Method[Any]]) -> TriedMutant:
    """Try a mutant on a method's exact settings; return the first try that catches it, else the largest one.

    A method without an exact setting is tried on all settings; there a mutant must change their total variation.
    Small cases go first for all settings, since most mutants show there on some setting.
    """
    exact = [method for method in settings if method.claim is not Claim.APPROXIMATE]
    tried: list[TriedMutant] = []
    for part in (slice(FIRST_CASES), slice(FIRST_CASES, None)):
        for method in exact or settings:
            cases = [case for case in cases_of(method) if mutant.state in ("", case.state)][part]
            clean: dict[str, float] = {}
            if not exact:
                with sheet(method):
                    for case in cases:
                        with suppress(EnumerationLimit) if case.few else nullcontext():
                            clean[str(case)] = measure(method, case).total_variation
            tried.append(try_mutant(method, mutant, cases, clean))
            if tried[-1].caught:
                return tried[-1]
    return max(tried, key=lambda result: result.total_variation)


def try_mutant(
    method: Method[Any], mutant: Mutant, cases: Sequence[Case], clean: dict[str, float], effort: Effort = WHOLE
) -> TriedMutant:
    """Return the total variation that a mutant adds, on the first case in which it exceeds ``CAUGHT``.

    Args:
        clean: the method's total variation without the mutant, by case; 0 if a case is absent.
    """
    largest, where = 0.0, ""
    for case in cases if mutant.state else ():
        law_to_match(reference_of(method), case)
    with sheet(method, mutant), injected(mutant):
        for case in cases:
            if clean and str(case) not in clean:
                continue  # it does not fit the method
            try:
                added = abs(measure(method, case, effort).total_variation - clean.get(str(case), 0.0))
            except ContractError:
                added = 1.0  # a check of the contract caught it before outputs were compared
            except EnumerationLimit:
                if not case.few:
                    raise
                continue
            if added > largest:
                largest, where = added, str(case)
            if largest > CAUGHT:
                break
    return TriedMutant(mutant.why, mutant.where, largest, where)


@contextmanager
def injected(mutant: Mutant) -> Iterator[None]:
    """Run the real function with one line changed while inside.

    The function's code object is swapped, so every module that imported the function sees the bug.

    Raises:
        ContractError: the text to replace is not on exactly one line of the function.
    """
    function = _find(mutant.where)
    source = textwrap.dedent(inspect.getsource(function))
    lines = [number for number, line in enumerate(source.splitlines()) if mutant.old in line]
    if len(lines) != 1:
        raise ContractError(
            f"the mutant {mutant.why!r} looks for {mutant.old!r} on one line of {mutant.where} "
            f"and finds it on {len(lines)}; bring the Mutant up to date with the function"
        )
    scope: dict[str, Any] = {}
    patched_source = source.replace(mutant.old, mutant.new)
    exec(compile(patched_source, f"<mutant: {mutant.why}>", "exec"), function.__globals__, scope)
    patched = inspect.unwrap(scope[function.__name__])
    original = function.__code__
    function.__code__ = patched.__code__
    try:
        with nullcontext() if mutant.state else changed_code():
            yield
    finally:
        function.__code__ = original


def _find(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    item: Any = importlib.import_module(module)
    for name in path.split("."):
        item = inspect.getattr_static(item, name)
        item = item.__func__ if isinstance(item, classmethod | staticmethod) else item
    function = inspect.unwrap(item)
    if not isinstance(function, FunctionType):
        raise ContractError(f"a mutant names {where}, which is not a Python function")
    return function
