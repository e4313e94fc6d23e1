"""A proof for other people's samplers: one cycle of a function that accepts or resamples drafts, over all its draws.

A cycle drafts tokens, the function emits some, and the target would go on from there. If what is emitted, completed by
the target's own tokens, has the target's distribution for every model, every decode has it. So one cycle is enough.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from stridebench.harness.errors import ContractError, EnumerationLimit
from stridebench.harness.proof.samplers import Request, Sampler, SamplerDraws, Tokens, imports_beside

EXACT, ROUNDED, SEEN = 1e-9, 1e-5, 1e-3
"""Total variations: exact below the first, exact up to the rounding of fp32 below the second, biased above the last."""
CALLS = 2_000_000
"""The most calls of a function on one model."""
GRID = 24
"""Numbers in [0, 1) at which a uniform draw is tried first; pieces between two that differ are found by bisection."""
WIDTH = 1e-12
PROBES = 3
Rows = Float[NDArray[np.float64], "N V"]


@dataclass(frozen=True)
class RandomModel:
    """A random target and drafter: a distribution for each prefix of up to ``depth`` tokens.

    Args:
        p, q: by prefix, (V,).
    """

    title: str
    p: dict[Tokens, Rows]
    q: dict[Tokens, Rows]


def models(vocabulary: int, depth: int) -> Iterator[RandomModel]:
    """Yield random models: two at T = 1, a cold one, one cut to two ids, one at T = 0, and one with a good drafter."""
    prefixes = [p for n in range(depth + 1) for p in itertools.product(range(vocabulary), repeat=n)]
    for seed, title in enumerate(("T = 1", "T = 1, seed 1", "T = 0.5", "top-k = 2", "T = 0", "a good drafter")):
        rng = np.random.default_rng(seed)
        logits = {side: {prefix: rng.normal(size=vocabulary) * 1.2 for prefix in prefixes} for side in "pq"}
        if title == "a good drafter":
            logits["q"] = {prefix: 0.8 * logits["p"][prefix] + 0.2 * logits["q"][prefix] for prefix in prefixes}
        sides = [{prefix: _warped(row, title) for prefix, row in logits[side].items()} for side in "pq"]
        yield RandomModel(title, *sides)


def _warped(logits: Rows, title: str) -> Rows:
    row = np.exp(logits * (2.0 if title == "T = 0.5" else 1.0))
    if title == "top-k = 2":
        row[np.argsort(row)[:-2]] = 0.0
    if title == "T = 0":
        row = (row == row.max()).astype(float)
    return np.asarray(row / row.sum())


Corrupt = Callable[[Rows, Rows], tuple[Rows, Rows]]
FAULTS: dict[str, Corrupt] = {
    "target rows one place late": lambda q, p: (q, np.roll(p, 1, axis=0)),
    "target flattened": lambda q, p: (q, p**0.8 / (p**0.8).sum(-1, keepdims=True)),
    "drafter's rows flat": lambda q, p: ((q > 0) / (q > 0).sum(-1, keepdims=True), p),
}
"""What is done to the function's arguments, to see whether the proof would have noticed."""


@dataclass(frozen=True)
class MeasuredCycle:
    """A sampler on one model.

    Args:
        accepted: mean of accepted drafts. block: the same for block verification, None for trees and other drafts.
        law: of the drafts and the first tokens, to compare two of them.
    """

    model: str
    total_variation: float
    accepted: float
    block: float | None
    law: dict[Tokens, float]


def measure(sampler: Sampler, model: RandomModel, vocabulary: int, corrupt: Corrupt | None = None) -> MeasuredCycle:
    """Enumerate a cycle on a model.

    Raises:
        ContractError: the function returns something else than 1 to K + 1 ids, draws from a global generator, or
            changes its arguments.
        EnumerationLimit: it takes over two million calls, or one call takes too many draws.
    """
    depth = _depth(sampler) + 1
    comparable = sampler.parents is None and sampler.propose is None
    law: dict[Tokens, float] = defaultdict(float)
    accepted = block = 0.0
    cycle = partial(_cycle, sampler, model, corrupt, vocabulary)
    with imports_beside(sampler.folder):
        for weight, (tokens, emitted) in _outcomes(cycle, sampler):
            accepted += weight * (len(emitted) - 1)
            block += weight * _block(model, tokens) if comparable else 0.0
            for rest in itertools.product(range(vocabulary), repeat=max(0, depth - len(emitted))):
                law[(*emitted, *rest)[:depth]] += weight * _chain(model.p, rest, emitted)
    truth = {text: _chain(model.p, text) for text in itertools.product(range(vocabulary), repeat=depth)}
    distance = float(sum(abs(law[text] - weight) for text, weight in truth.items()) / 2)
    return MeasuredCycle(model.title, distance, accepted, block if comparable else None, dict(law))


def _depth(sampler: Sampler) -> int:
    depths: list[int] = []
    for parent in sampler.tree:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def _chain(rows: dict[Tokens, Rows], text: Sequence[int], prefix: Tokens = ()) -> float:
    """Return the probability of a text behind a prefix."""
    return float(math.prod(rows[(*prefix, *text[:place])][token] for place, token in enumerate(text)))


def _block(model: RandomModel, tokens: Tokens) -> float:
    """Return the sum of the capped joint ratios of a chain: what block verification accepts of it, on average."""
    ratio, total = 1.0, 0.0
    for place, token in enumerate(tokens):
        ratio = min(1.0, ratio * model.p[tokens[:place]][token] / model.q[tokens[:place]][token])
        total += ratio
    return total


def _cycle(
    sampler: Sampler, model: RandomModel, corrupt: Corrupt | None, vocabulary: int, draws: SamplerDraws
) -> tuple[Tokens, Tokens]:
    """Draft and verify once; return the drafted tokens and the emitted ones."""
    tokens: list[int] = []
    prefixes: list[Tokens] = []
    q_rows: list[Rows] = []
    for node, parent in enumerate(sampler.tree):
        prefix = () if parent < 0 else (*prefixes[parent], tokens[parent])
        row = model.q[prefix].copy()
        if sampler.distinct:
            taken = [tokens[other] for other in range(node) if sampler.tree[other] == parent]
            row[taken] = 0.0
            if row.sum() == 0:
                row = np.array([float(token not in taken) for token in range(vocabulary)])
            row /= row.sum()
        token = draws.token(row) if sampler.propose is None else _proposed(sampler, tokens, [*q_rows, row], draws)
        if token is None:
            break
        tokens.append(token)
        prefixes.append(prefix)
        q_rows.append(row)
    q = np.array(q_rows).reshape(-1, vocabulary)
    p = np.array([model.p[()], *(model.p[(*prefix, token)] for prefix, token in zip(prefixes, tokens, strict=True))])
    if corrupt is not None:
        q, p = corrupt(q, p)
    return tuple(tokens), _emitted(sampler, tokens, q, p, draws, vocabulary)


def _proposed(sampler: Sampler, tokens: list[int], rows: list[Rows], draws: SamplerDraws) -> int | None:
    """Call the file's own drafting with what is drafted so far; None ends the draft."""
    arguments = (sampler.as_array(np.array(tokens, dtype=np.int64)), sampler.as_array(np.array(rows)))
    token = _called(sampler, sampler.propose, *arguments, draws)
    if token is None:
        return None
    (drafted,) = _ids([token]) or [-1]
    if not 0 <= drafted < len(rows[-1]):
        raise ContractError(
            f"{sampler.name} drafts {token!r}; propose returns an id from 0 to {len(rows[-1]) - 1}, or None"
        )
    if not rows[-1][drafted] > 0:
        raise ContractError(f"{sampler.name} drafts the id {drafted}, to which the drafter gives probability 0")
    return drafted


def _ids(returned: Any) -> list[int]:
    """Return whole numbers as ids; empty if they are something else, such as floats, which would be cut off."""
    try:
        return [operator.index(token) for token in returned]
    except TypeError:
        return []


def _called(sampler: Sampler, function: Any, *arguments: Any) -> Any:
    """Call a function of the file; what it raises becomes one error with its place."""
    try:
        return function(*arguments)
    except (ContractError, EnumerationLimit) as error:
        raise type(error)(f"{sampler.name}: {error}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ContractError(
            f"{sampler.name} ended with {type(error).__name__}: {error} "
            f"({Path(place.filename).name}:{place.lineno}), for the drafts {arguments[0].tolist()}"
        ) from error


def _emitted(sampler: Sampler, tokens: list[int], q: Rows, p: Rows, draws: SamplerDraws, vocabulary: int) -> Tokens:
    """Call the function with arrays of its own, and check what it returns and leaves behind."""
    arguments = [sampler.as_array(np.array(tokens, dtype=np.int64)), sampler.as_array(q), sampler.as_array(p)]
    if sampler.parents is not None:
        arguments.insert(1, sampler.as_array(sampler.tree[: len(tokens)]))
    before = copy.deepcopy(arguments)
    emitted = _called(sampler, sampler.verify, *arguments, draws)
    if isinstance(emitted, Iterator):  # a generator runs when it is read
        emitted = _called(sampler, lambda *_: list(emitted), *arguments)
    if any(not np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(before, arguments, strict=True)):
        raise ContractError(f"{sampler.name} changes its arguments in place; let it work on copies")
    if not (ids := _ids(emitted)):
        raise ContractError(f"{sampler.name} returned {emitted!r}; it returns a list of 1 to K + 1 ids, whole numbers")
    if not 1 <= len(ids) <= _depth(sampler) + 1 or not all(0 <= token < vocabulary for token in ids):
        raise ContractError(
            f"{sampler.name} returned {ids} for the drafts {tokens}; it returns the accepted tokens and one more, "
            f"1 to {_depth(sampler) + 1} ids from 0 to {vocabulary - 1}"
        )
    return tuple(ids)


def _generators() -> dict[str, Any]:
    """Return the state of each global generator."""
    import torch

    numpy_state = np.random.get_state(legacy=True)
    return {
        "numpy.random": (numpy_state[1].tobytes(), numpy_state[2]),  # type: ignore[index]
        "Python's random": random.getstate(),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
    }


def _check_generators(sampler: Sampler, states: dict[str, Any]) -> None:
    """Check that no global generator was drawn from since it had these states."""
    if drawn := [name for name, state in _generators().items() if state != states[name]]:
        raise ContractError(
            f"{sampler.name} draws from {drawn[0]}, which cannot be enumerated; "
            f"take draws.coin(probability), draws.token(weights) or draws.uniform()"
        )


Cycle = Callable[[SamplerDraws], tuple[Tokens, Tokens]]
Played = tuple[tuple[Tokens, Tokens], list[Request]]


def _outcomes(cycle: Cycle, sampler: Sampler) -> Iterator[tuple[float, tuple[Tokens, Tokens]]]:
    """Yield each outcome of a cycle with its weight."""
    calls = itertools.count(1)

    def played(answers: Sequence[float], probe: int = 0) -> Played:
        if next(calls) > CALLS:
            raise EnumerationLimit(
                f"{sampler.name}: one model takes over {CALLS} calls; draft fewer tokens, or draw less"
            )
        draws = SamplerDraws(answers, probe, sampler.as_array)
        return cycle(draws), draws.requests

    def played_twice(answers: Sequence[float]) -> Played:
        one, other = played(answers), played(answers)
        if one != other or len(one[1]) < len(answers):
            _check_generators(sampler, states)
            raise ContractError(
                f"{sampler.name}: equal draws gave two results: the function keeps something between its calls, or has "
                f"a generator of its own; take all random numbers from draws"
            )
        return one

    states = _generators()
    played_twice([])
    _check_generators(sampler, states)
    waiting: list[tuple[float, list[float]]] = [(1.0, [])]
    while waiting:
        weight, answers = waiting.pop()
        outcome, requests = played_twice(answers)
        if len(requests) == len(answers):
            yield weight, outcome
            continue
        weights = requests[len(answers)]
        if weights is None:
            pieces = _pieces(lambda number, answers=answers: _signatures(played, [*answers, number]))  # type: ignore[misc]
        else:
            pieces = [(share, index) for index, share in enumerate(weights) if share > 0]
        waiting += [(weight * share, [*answers, answer]) for share, answer in pieces]
    _check_generators(sampler, states)


def _signatures(played: Callable[[Sequence[float], int], Any], answers: Sequence[float]) -> list[Any]:
    """Return what follows these answers if the later ones are those of three probes."""
    signatures = []
    for probe in range(PROBES):
        outcome, requests = played(answers, probe)
        signatures.append(
            (outcome, [weights and tuple(round(weight, 9) for weight in weights) for weights in requests])
        )
    return signatures


def _pieces(signature: Callable[[float], Any]) -> list[tuple[float, float]]:
    """Return the length and the middle of each piece of [0, 1) on which a function is constant.

    A piece shorter than 1 / GRID that lies between two equal ones can be missed.
    """
    ends = [0.0, *((k + 0.5) / GRID for k in range(GRID)), 1 - WIDTH]
    known = {end: signature(end) for end in ends}
    cuts: list[float] = []

    def split(low: float, high: float) -> None:
        if known[low] == known[high]:
            return
        if high - low < WIDTH:
            cuts.append(high)
            return
        middle = (low + high) / 2
        known[middle] = signature(middle)
        split(low, middle)
        split(middle, high)

    for low, high in itertools.pairwise(ends):
        split(low, high)
    borders = [0.0, *cuts, 1.0]
    return [(high - low, (low + high) / 2) for low, high in itertools.pairwise(borders) if high > low]


@dataclass(frozen=True)
class SamplerRow:
    """What a proof says of a sampler.

    Args:
        verdict: exact, exact to rounding, or biased.
        total_variation, on: of the first K + 1 tokens, the largest, and the model that shows it.
        accepted, block: mean of accepted drafts over the models, and that of block verification on the same drafts.
        faults: for each fault of its arguments, whether the proof sees it; None if the function does not read them.
    """

    sampler: str
    about: str
    verdict: str
    total_variation: float
    on: str
    accepted: float
    block: float | None
    faults: dict[str, bool | None]

    @property
    def alarm(self) -> bool:
        """Whether more is accepted than block verification does, which no exact verifier of one cycle can."""
        return self.block is not None and self.accepted > self.block + EXACT


def prove_sampler(sampler: Sampler, vocabulary: int = 3) -> SamplerRow:
    """Enumerate a sampler on all models, then with each fault planted in its arguments."""
    cases = list(models(vocabulary, _depth(sampler) + 1))
    rows = [measure(sampler, model, vocabulary) for model in cases]
    worst = max(rows, key=lambda row: row.total_variation)
    faults: dict[str, bool | None] = {}
    for title, corrupt in FAULTS.items():
        planted = measure(sampler, cases[0], vocabulary, corrupt)
        moved = max(abs(weight - rows[0].law[text]) for text, weight in planted.law.items())
        faults[title] = planted.total_variation > SEEN if moved > EXACT else None
    tv = worst.total_variation
    verdict = "exact" if tv < EXACT else "exact to rounding" if tv < ROUNDED else "biased"
    blocks = [row.block for row in rows]
    block = None if None in blocks else float(sum(b for b in blocks if b is not None)) / len(rows)
    accepted = sum(row.accepted for row in rows) / len(rows)
    return SamplerRow(sampler.name, sampler.about, verdict, tv, worst.model, accepted, block, faults)
