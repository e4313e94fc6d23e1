"""The exact law of a method's output on a tabular model: every outcome of a decode with its weight.

Step by step: the state, the sessions and the clocks are copied, one step is replayed over all outcomes of its draws,
and outcomes that leave everything equal are merged. The shortest outputs go first, so each is met once.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.draft import Path
from stridebench.harness.core.draws import Draws, SeededDraws, Stream, check_distinct
from stridebench.harness.core.loop import advance, output, start, truncate
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError, EnumerationLimit
from stridebench.harness.proof.races import Polygon, area_of, simplex, winner


class Script:
    """The choices along one outcome, and the outcomes that remain. Draws that share a script are enumerated jointly.

    Args:
        widest: the most outcomes of one step: the product of its draws' branches along an outcome.

    Attributes:
        weight: the probability of the choices so far.
        branches: outcomes that were left for later, by the value drawn.
    """

    def __init__(self, widest: float = math.inf) -> None:
        self.branches: Counter[str] = Counter()
        self._widest = widest
        self.replay([], [])

    def replay(self, script: list[int], stack: list[list[int]]) -> None:
        """Begin one outcome: follow ``script``, then first choices; others are pushed on ``stack``."""
        self._script, self._stack, self._cursor = list(script), stack, 0
        self.weight, self._width = 1.0, 1.0

    def choose(self, weights: Sequence[float], what: str) -> int:
        """One of the outcomes with positive weight.

        Raises:
            EnumerationLimit: the draws of this step have more than ``widest`` outcomes.
        """
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


class EnumeratingDraws(Draws):
    """Answers each call from a script, and stores the outcomes that are left.

    Args:
        widest: the most outcomes of one step: the product of its draws' branches along an outcome.
        pinned: streams that are answered by a seed instead, alike in every step.
        most: the most outcomes of a whole enumeration.
        script: of several draws that are enumerated jointly, or None for a new one.
    """

    def __init__(
        self,
        widest: float = math.inf,
        pinned: frozenset[Stream] = frozenset(),
        start: int = 0,
        most: float = math.inf,
        script: Script | None = None,
    ) -> None:
        self.most = most
        self.limits = (widest, tuple(sorted(pinned)), start, most)
        self.script = Script(widest) if script is None else script
        self._pinned, self._start = pinned, start
        self._answered = 0
        self.clocks: dict[int, Polygon] = {}

    @property
    def weight(self) -> float:
        """The probability of the choices so far."""
        return self.script.weight

    @property
    def branches(self) -> Counter[str]:
        """Return the outcomes that were left for later, by the value drawn."""
        return self.script.branches

    def replay(self, script: list[int], stack: list[list[int]], clocks: dict[int, Polygon]) -> None:
        """Begin one outcome: follow ``script``, then first choices; others are pushed on ``stack``."""
        self.script.replay(script, stack)
        self.begin(clocks)

    def begin(self, clocks: dict[int, Polygon]) -> None:
        """Begin one outcome of a script that is replayed already."""
        self._answered = 0
        self.clocks = dict(clocks)

    def sharing(self) -> EnumeratingDraws:
        """Draws of another decode that are enumerated jointly with these, with the same pins."""
        return EnumeratingDraws(pinned=self._pinned, start=self._start, most=self.most, script=self.script)

    def choose(self, weights: Sequence[float], what: str) -> int:
        """One of the outcomes with positive weight.

        Raises:
            EnumerationLimit: the draws of this step have more than ``widest`` outcomes.
        """
        if what.partition("/")[2] in self._pinned:
            return self._answer(weights)
        return self.script.choose(weights, what)

    def _answer(self, weights: Sequence[float]) -> int:
        """Return the outcome of the n-th pinned draw of a step."""
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
        accepts = accept.tolist()
        parent_of = list(range(-1, len(accepts) - 1)) if parents is None else parents.tolist()
        nodes: list[int] = []
        last = -1
        for node, probability in enumerate(accepts):
            if parent_of[node] == last and self.choose([probability, 1 - probability], "path") == 0:
                nodes.append(node)
                last = node
        padded = torch.tensor(nodes + [-1] * (len(accepts) - len(nodes)), dtype=torch.long)
        return Path(padded, torch.tensor(last + 1), accept.new_zeros(()))

    def couple(self, x: Int[Tensor, " N"], q: Float[Tensor, "N V"], p: Float[Tensor, "N V"]) -> Int[Tensor, " N"]:
        out = []
        for token, old, new in zip(x.tolist(), q.tolist(), p.tolist(), strict=True):
            keep = min(1.0, new[token] / old[token])
            left = [max(0.0, b - a) for a, b in zip(old, new, strict=True)]
            rest = (1 - keep) / sum(left) if sum(left) > 0 else 0.0
            outcomes = [rest * weight + (keep if v == token else 0.0) for v, weight in enumerate(left)]
            out.append(self.choose(_normal(outcomes), "couple"))
        return torch.tensor(out, dtype=torch.long)

    def race(self, probs: Float[Tensor, "N V"], keys: Sequence[int]) -> Int[Tensor, " N"]:
        return torch.tensor(
            [self._race(row, key) for row, key in zip(probs.tolist(), self.race_keys(keys), strict=True)],
            dtype=torch.long,
        )

    def _race(self, row: list[float], key: int) -> int:
        region = self.clocks.get(key, simplex(len(row)))
        regions = [winner(region, row, token) for token in range(len(row))]
        token = self.choose(_normal([area_of(region) for region in regions]), "race")
        self.clocks[key] = regions[token]
        return token


def _normal(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def fork(thing: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy, about thirty times faster than `copy` for the usual contents of a state."""
    if thing is None or isinstance(thing, int | float | str):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, Tensor):
        twin: Any = thing.clone()
    elif type(thing) in (list, tuple):
        twin = type(thing)(fork(item, memo) for item in thing)
    elif type(thing) is dict:
        twin = {fork(key, memo): fork(value, memo) for key, value in thing.items()}
    elif is_dataclass(thing) and hasattr(thing, "__dict__") and not hasattr(thing, "__deepcopy__"):
        twin = object.__new__(type(thing))
        memo[id(thing)] = twin
        vars(twin).update({name: fork(value, memo) for name, value in vars(thing).items()})
    else:
        twin = copy.deepcopy(thing, memo)
    memo[id(thing)] = twin
    return twin


def _values(thing: Any) -> list[Any]:
    """Return the contents of a dataclass: its fields, or all attributes by name if there are more."""
    names = [f.name for f in fields(thing)]
    attributes = getattr(thing, "__dict__", {})
    if len(attributes) > len(names):
        return sorted(attributes.items())
    return [getattr(thing, name) for name in names]


def freeze(thing: Any) -> Any:
    """Return a hashable key; floats are rounded so that equal distributions merge."""
    if isinstance(thing, Tensor):
        values = thing.double().mul(1e12).round() if thing.is_floating_point() else thing
        return (tuple(thing.shape), tuple(values.reshape(-1).tolist()))
    if isinstance(thing, Session):
        return (tuple(thing.tokens), thing.cached, freeze(thing.cache_state))
    if isinstance(thing, Canvas):
        return (tuple(sorted(thing.tokens.items())), freeze(thing.cache_state))
    if is_dataclass(thing) and not isinstance(thing, type):
        return (type(thing), *(freeze(value) for value in _values(thing)))
    if isinstance(thing, dict):
        return tuple((freeze(key), freeze(value)) for key, value in sorted(thing.items(), key=repr))
    if isinstance(thing, list | tuple):
        return tuple(freeze(item) for item in thing)
    if isinstance(thing, float):
        return round(thing, 12)
    if thing is None or isinstance(thing, int | str | bool | frozenset):
        return thing
    plain = getattr(type(thing), "__reduce__", None) == getattr(object, "__reduce__", None)
    if hasattr(thing, "__dict__") and not callable(thing) and plain:
        return (type(thing).__name__, freeze(vars(thing)))  # all of its state is in its attributes
    raise ContractError(f"a state holds a {type(thing).__name__}, which cannot be compared; use plain data")


STEP_LIMIT = 200_000
TOTAL_LIMIT = 2_000_000
Law = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class _Node:
    """A decode between two steps."""

    run: Run
    state: Any
    clocks: dict[int, Polygon]
    tokens: tuple[int, ...]


class _Frontier:
    """Decodes that go on, with their weights, the shortest output first; equal ones are merged."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._nodes: dict[int, tuple[float, _Node]] = {}
        self._numbers: dict[Any, int] = {}

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, weight: float, node: _Node) -> None:
        """Add a decode, or its weight to that of an equal one."""
        run = node.run
        key = (node.tokens, freeze((run.target, run.opened, run.pictures, node.state, node.clocks)))
        if key in self._numbers:
            number = self._numbers[key]
            weight_before, same = self._nodes[number]
            self._nodes[number] = (weight_before + weight, same)
            return
        number = self._numbers[key] = len(self._numbers)
        self._nodes[number] = (weight, node)
        heapq.heappush(self._heap, (len(node.tokens), number))

    def pop(self) -> tuple[float, _Node]:
        """Return the decode with the shortest output; the first that was pushed among equally long ones."""
        return self._nodes.pop(heapq.heappop(self._heap)[1])


@torch.inference_mode()
def output_law(
    method: Method[Any],
    open_run: Callable[[Draws], Run],
    draws: EnumeratingDraws | None = None,
    watch: Callable[[float, int, tuple[int, ...], tuple[int, ...]], None] = lambda *outcome: None,
) -> Law:
    """Return the exact law of the method's output.

    Args:
        open_run: makes a run over a tabular backbone whose draws are the ones it is given.
        watch: told each outcome of each step: its weight, the number of the state before it, the output so far, and
            the tokens that the step emitted.

    Raises:
        EnumerationLimit: more than 200,000 outcomes a step or 2 million in all, or than ``draws`` allows.
    """
    draws = EnumeratingDraws() if draws is None else draws
    root = open_run(draws)
    room = root.room
    law: Law = {}
    frontier = _Frontier()
    counts = Counter[str]()
    for weight, node in _outcomes(draws, root, None, {}, lambda run, _: start(method, run), counts):
        frontier.push(weight, node)
    number = 0
    while frontier:
        before, node = frontier.pop()
        number += 1
        for weight, after in _steps(method, draws, node, counts):
            watch(before * weight, number, node.tokens, after.tokens[len(node.tokens) :])
            emitted, ended = truncate(after.tokens[len(node.tokens) :], room - len(node.tokens), after.run.eos)
            tokens = output(after.run, node.tokens + emitted)
            if ended or after.run.ended or len(tokens) == room:
                law[tokens] = law.get(tokens, 0.0) + before * weight
                continue
            clocks = {key: region for key, region in after.clocks.items() if key >= len(after.run.target)}
            frontier.push(before * weight, replace(after, tokens=tokens, clocks=clocks))
    return law


def _steps(
    method: Method[Any], draws: EnumeratingDraws, node: _Node, counts: Counter[str]
) -> Iterable[tuple[float, _Node]]:
    """Yield each outcome of one step, with its weight."""
    emitted: list[tuple[int, ...]] = []

    def step(run: Run, state: Any) -> Any:
        emitted.append(advance(method, run, state).emitted)
        return state

    for weight, after in _outcomes(draws, node.run, node.state, node.clocks, step, counts):
        yield weight, replace(after, tokens=node.tokens + emitted[-1])


def _outcomes(
    draws: EnumeratingDraws,
    run: Run,
    state: Any,
    clocks: dict[int, Polygon],
    act: Callable[[Run, Any], Any],
    counts: Counter[str],
) -> Iterable[tuple[float, _Node]]:
    """Yield each outcome of ``act`` on a copy of the run, with its weight."""
    scripts: list[list[int]] = [[]]
    in_step = 0
    while scripts:
        script = scripts.pop()
        memo: dict[int, Any] = {}
        twin = replace(
            run, target=fork(run.target, memo), opened=fork(run.opened, memo), pictures=fork(run.pictures, memo)
        )
        draws.replay(script, scripts, clocks)
        after = act(twin, fork(state, memo))
        yield draws.weight, _Node(twin, after, draws.clocks, ())
        in_step += 1
        counts["outcomes"] += 1
        in_all = min(TOTAL_LIMIT, draws.most)
        if in_step > STEP_LIMIT or counts["outcomes"] > in_all:
            widest = draws.branches.most_common(1)
            raise EnumerationLimit(
                f"over {STEP_LIMIT} outcomes in a step or {in_all} in all; the draw that branches most is "
                f"{widest[0][0] if widest else 'none'}. Draw only what is used, or verify at a smaller window."
            )
