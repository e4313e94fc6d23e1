"""Every outcome of a decode with its weight: a method's exact output law on a tabular model.

Step by step: the state, the sessions and the clocks are copied, one step is replayed over all outcomes of its
draws, and outcomes that leave everything equal are merged. The shortest outputs go first, so each is met once.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.canvas import Canvas
from harness.core.draft import Path
from harness.core.draws import Draws, SeededDraws, Stream, check_distinct
from harness.core.loop import advance, output, start, truncate
from harness.core.method import Method
from harness.core.run import Run
from harness.core.session import Session
from harness.errors import ContractError, EnumerationLimit
from harness.proof.simplex import Polygon, _area, _simplex, _winner

STEP_LIMIT = 200_000
TOTAL_LIMIT = 2_000_000
Law = dict[tuple[int, ...], float]


class EnumeratingDraws(Draws):
    """Answers each call from a script, and notes the outcomes not taken yet.

    Args:
        widest: outcomes that one step may promise: the product of its draws' branches, along each outcome.
        pinned: streams that are answered by a seed instead, alike in every step. start: that seed.
    """

    def __init__(self, widest: float = math.inf, pinned: frozenset[Stream] = frozenset(), start: int = 0) -> None:
        self.weight = 1.0
        self._widest, self._pinned, self._start = widest, pinned, start
        self._width = 1.0
        self._answered = 0
        self.clocks: dict[int, Polygon] = {}
        self.branches: Counter[str] = Counter()
        self._script: list[int] = []
        self._cursor = 0
        self._stack: list[list[int]] = []

    def replay(self, script: list[int], stack: list[list[int]], clocks: dict[int, Polygon]) -> None:
        """Begin one outcome: follow ``script``, then first choices; others are pushed on ``stack``."""
        self._script, self._stack, self._cursor, self.weight = list(script), stack, 0, 1.0
        self._width, self._answered = 1.0, 0
        self.clocks = dict(clocks)

    def choose(self, weights: Sequence[float], what: str) -> int:
        """One of the outcomes with positive weight.

        Raises:
            EnumerationLimit: the draws of this step promise more than ``widest`` outcomes.
        """
        if what.partition("/")[2] in self._pinned:
            return self._answer(weights)
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        self._width *= len(possible)
        if self._width > self._widest:
            raise EnumerationLimit(
                f"the draws of a step promise over {self._widest:g} outcomes, {what} the last of them. "
                f"Draw only what is used, or verify at a smaller window."
            )
        if self._cursor == len(self._script):
            self._stack.extend([*self._script, other] for other in possible[1:])
            self.branches[what] += len(possible) - 1
            self._script.append(possible[0])
        index = self._script[self._cursor]
        self._cursor += 1
        self.weight *= weights[index]
        return index

    def _answer(self, weights: Sequence[float]) -> int:
        """What the seed says to the n-th pinned draw of a step."""
        self._answered += 1
        draws = SeededDraws(self._start, "pinned", str(self._answered), 0)
        return int(draws.categorical(torch.tensor([weights], dtype=torch.float64), "init"))

    def integers(self, n: int, high: int, stream: Stream) -> Int[Tensor, " n"]:
        even = [1 / high] * high
        return torch.tensor([self.choose(even, f"integers/{stream}") for _ in range(n)], dtype=torch.long)

    def categorical(self, probs: Float[Tensor, "N V"], stream: Stream) -> Int[Tensor, " N"]:
        rows = [_normal(row) for row in probs.tolist()]
        return torch.tensor([self.choose(r, f"categorical/{stream}") for r in rows], dtype=torch.long)

    def distinct(self, probs: Float[Tensor, "M V"], k: int, stream: Stream) -> Int[Tensor, "M k"]:
        check_distinct(k, probs.shape[1])
        rows = [self._ordered(row, k, stream) for row in probs.tolist()]
        return torch.tensor(rows, dtype=torch.long).reshape(len(rows), k)

    def _ordered(self, row: list[float], k: int, stream: Stream) -> list[int]:
        tokens: list[int] = []
        for _ in range(k):
            left = [0.0 if token in tokens else weight for token, weight in enumerate(row)]
            if sum(left) > 0:
                tokens.append(self.choose(_normal(left), f"distinct/{stream}"))
            else:
                tokens.append(next(token for token in range(len(row)) if token not in tokens))
        return tokens

    def path(self, accept: Float[Tensor, " K"], parents: Int[Tensor, " K"] | None = None) -> Path:
        odds = accept.tolist()
        above = list(range(-1, len(odds) - 1)) if parents is None else parents.tolist()
        nodes: list[int] = []
        last, k = -1, 0
        while k < len(odds):
            if above[k] == last and self.choose([odds[k], 1 - odds[k]], "path") == 0:
                nodes.append(k)
                last = k
            k += 1
        padded = torch.tensor(nodes + [-1] * (len(odds) - len(nodes)), dtype=torch.long)
        return Path(padded, torch.tensor(last + 1), accept.new_zeros(()))

    def couple(self, x: Int[Tensor, " N"], q: Float[Tensor, "N V"], p: Float[Tensor, "N V"]) -> Int[Tensor, " N"]:
        out = []
        for token, old, new in zip(x.tolist(), q.tolist(), p.tolist(), strict=True):
            keep = min(1.0, new[token] / old[token])
            left = [max(0.0, b - a) for a, b in zip(old, new, strict=True)]
            rest = (1 - keep) / sum(left) if sum(left) > 0 else 0.0
            odds = [rest * weight + (keep if v == token else 0.0) for v, weight in enumerate(left)]
            out.append(self.choose(_normal(odds), "couple"))
        return torch.tensor(out, dtype=torch.long)

    def race(self, probs: Float[Tensor, "N V"], keys: Sequence[int]) -> Int[Tensor, " N"]:
        return torch.tensor(
            [self._race(row, key) for row, key in zip(probs.tolist(), keys, strict=True)], dtype=torch.long
        )

    def _race(self, row: list[float], key: int) -> int:
        region = self.clocks.get(key, _simplex(len(row)))
        parts = [_winner(region, row, token) for token in range(len(row))]
        token = self.choose(_normal([_area(part) for part in parts]), "race")
        self.clocks[key] = parts[token]
        return token


@dataclass(frozen=True)
class _Node:
    """A decode between two steps."""

    run: Run
    state: Any
    clocks: dict[int, Polygon]
    tokens: tuple[int, ...]


def output_law(method: Method[Any], open_run: Callable[[Draws], Run], draws: EnumeratingDraws | None = None) -> Law:
    """The exact law of the method's output.

    Args:
        open_run: makes a run over a tabular backbone whose draws are the ones it is given. draws: with limits or pins.

    Raises:
        EnumerationLimit: more than 200,000 outcomes a step or 2 million in all, or than ``draws`` allows.
    """
    draws = EnumeratingDraws() if draws is None else draws
    root = open_run(draws)
    room = root.room
    law: Law = {}
    heap: list[tuple[int, int]] = []
    nodes: dict[int, tuple[float, _Node]] = {}
    index: dict[Any, int] = {}
    serial = itertools.count()
    budget = Counter[str]()

    def push(weight: float, node: _Node) -> None:
        run = node.run
        key = (node.tokens, _freeze((run.target, run.filling, run.opened, run.pictures, node.state, node.clocks)))
        if key in index:
            held, same = nodes[index[key]]
            nodes[index[key]] = (held + weight, same)
            return
        index[key] = next(serial)
        nodes[index[key]] = (weight, node)
        heapq.heappush(heap, (len(node.tokens), index[key]))

    for weight, node in _outcomes(draws, root, None, {}, lambda run, _: start(method, run), budget):
        push(weight, node)
    while heap:
        _, number = heapq.heappop(heap)
        mass, node = nodes.pop(number)
        for weight, after in _steps(method, draws, node, budget):
            emitted = after.tokens[len(node.tokens) :]
            kept, ended = truncate(emitted, room - len(node.tokens), after.run.eos)
            tokens = output(after.run, node.tokens + kept)
            if ended or len(tokens) == room:
                law[tokens] = law.get(tokens, 0.0) + mass * weight
                continue
            after.run.emitted = len(tokens)
            alive = {key: shape for key, shape in after.clocks.items() if key >= len(after.run.target)}
            push(mass * weight, replace(after, tokens=tokens, clocks=alive))
    return law


def _steps(
    method: Method[Any], draws: EnumeratingDraws, node: _Node, budget: Counter[str]
) -> Iterable[tuple[float, _Node]]:
    emitted: list[tuple[int, ...]] = []

    def step(run: Run, state: Any) -> Any:
        emitted.append(advance(method, run, state).emitted)
        return state

    for weight, after in _outcomes(draws, node.run, node.state, node.clocks, step, budget):
        yield weight, replace(after, tokens=node.tokens + emitted[-1])


def _outcomes(
    draws: EnumeratingDraws,
    run: Run,
    state: Any,
    clocks: dict[int, Polygon],
    act: Callable[[Run, Any], Any],
    budget: Counter[str],
) -> Iterable[tuple[float, _Node]]:
    """Each outcome of ``act`` on a copy of the run, with its weight."""
    stack: list[list[int]] = [[]]
    count = 0
    while stack:
        script = stack.pop()
        memo: dict[int, Any] = {}
        fork = copy.copy(run)
        fork.target, fork.filling = _fork(run.target, memo), _fork(run.filling, memo)
        fork.opened = {name: _fork(session, memo) for name, session in run.opened.items()}
        fork.pictures = {name: _fork(canvas, memo) for name, canvas in run.pictures.items()}
        draws.replay(script, stack, clocks)
        after = act(fork, _fork(state, memo))
        yield draws.weight, _Node(fork, after, draws.clocks, ())
        count += 1
        budget["outcomes"] += 1
        if count > STEP_LIMIT or budget["outcomes"] > TOTAL_LIMIT:
            worst = draws.branches.most_common(1)
            raise EnumerationLimit(
                f"over {STEP_LIMIT} outcomes in a step or {TOTAL_LIMIT} in all; the draw that branches most is "
                f"{worst[0][0] if worst else 'none'}. Draw only what is used, or verify at a smaller window."
            )


def _fork(thing: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; what a state is usually made of is copied some thirty times faster than by `copy`."""
    if thing is None or isinstance(thing, int | float | str):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, Tensor):
        twin: Any = thing.clone()
    elif isinstance(thing, list | dict | set | tuple):
        return copy.deepcopy(thing, memo)
    elif _plain_data(thing):
        twin = copy.copy(thing)
        memo[id(thing)] = twin
        for f in fields(thing):
            setattr(twin, f.name, _fork(getattr(thing, f.name), memo))
    else:
        twin = copy.deepcopy(thing, memo)
    memo[id(thing)] = twin
    return twin


def _plain_data(thing: Any) -> bool:
    """A dataclass that can be written to and does not copy itself in its own way."""
    frozen = getattr(getattr(thing, "__dataclass_params__", None), "frozen", True)
    return not frozen and not hasattr(thing, "__deepcopy__")


def _freeze(thing: Any) -> Any:
    """A hashable key; floats are rounded so that equal laws merge."""
    if isinstance(thing, Tensor):
        values = thing.double().mul(1e12).round() if thing.is_floating_point() else thing
        return (tuple(thing.shape), tuple(values.reshape(-1).tolist()))
    if isinstance(thing, Session):
        return (tuple(thing.tokens), thing.cached, _freeze(thing.held))
    if isinstance(thing, Canvas):
        return (tuple(sorted(thing.tokens.items())), _freeze(thing.held))
    if is_dataclass(thing) and not isinstance(thing, type):
        return tuple(_freeze(getattr(thing, f.name)) for f in fields(thing))
    if isinstance(thing, dict):
        return tuple((_freeze(key), _freeze(value)) for key, value in sorted(thing.items(), key=repr))
    if isinstance(thing, list | tuple):
        return tuple(_freeze(item) for item in thing)
    if isinstance(thing, float):
        return round(thing, 12)
    if thing is None or isinstance(thing, int | str | bool | frozenset):
        return thing
    plain = getattr(type(thing), "__reduce__", None) == getattr(object, "__reduce__", None)
    if hasattr(thing, "__dict__") and not callable(thing) and plain:
        return (type(thing).__name__, _freeze(vars(thing)))  # all of its state is in its attributes
    raise ContractError(f"a state holds a {type(thing).__name__}, which cannot be compared; use plain data")


def _normal(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]
