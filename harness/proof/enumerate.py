"""The exact law of a method's output on a tabular model: every outcome of a decode with its weight.

Step by step: the state, the sessions and the clocks are copied, one step is replayed over all outcomes of its draws,
and outcomes that leave everything equal are merged. The shortest outputs go first, so each is met once.
"""

from __future__ import annotations

import copy
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from stridebench.harness.core.draws import Draws
from stridebench.harness.core.loop import advance, output, start, truncate
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import EnumerationLimit
from stridebench.harness.proof.enumerating_draws import EnumeratingDraws
from stridebench.harness.proof.simplex import Polygon
from stridebench.harness.proof.states import fork, freeze

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
        key = (node.tokens, freeze((run.target, run.filling, run.opened, run.pictures, node.state, node.clocks)))
        if key in self._numbers:
            number = self._numbers[key]
            weight_before, same = self._nodes[number]
            self._nodes[number] = (weight_before + weight, same)
            return
        number = self._numbers[key] = len(self._numbers)
        self._nodes[number] = (weight, node)
        heapq.heappush(self._heap, (len(node.tokens), number))

    def pop(self) -> tuple[float, _Node]:
        """The decode with the shortest output; the first that was pushed among equally long ones."""
        return self._nodes.pop(heapq.heappop(self._heap)[1])


@torch.inference_mode()
def output_law(method: Method[Any], open_run: Callable[[Draws], Run], draws: EnumeratingDraws | None = None) -> Law:
    """The exact law of the method's output.

    Args:
        open_run: makes a run over a tabular backbone whose draws are the ones it is given.
        draws: with limits or pins.

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
    while frontier:
        before, node = frontier.pop()
        for weight, after in _steps(method, draws, node, counts):
            emitted, ended = truncate(after.tokens[len(node.tokens) :], room - len(node.tokens), after.run.eos)
            tokens = output(after.run, node.tokens + emitted)
            if ended or len(tokens) == room:
                law[tokens] = law.get(tokens, 0.0) + before * weight
                continue
            after.run.emitted = len(tokens)
            clocks = {key: region for key, region in after.clocks.items() if key >= len(after.run.target)}
            frontier.push(before * weight, replace(after, tokens=tokens, clocks=clocks))
    return law


def _steps(
    method: Method[Any], draws: EnumeratingDraws, node: _Node, counts: Counter[str]
) -> Iterable[tuple[float, _Node]]:
    """Each outcome of one step, with its weight."""
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
    """Each outcome of ``act`` on a copy of the run, with its weight."""
    scripts: list[list[int]] = [[]]
    in_step = 0
    while scripts:
        script = scripts.pop()
        memo: dict[int, Any] = {}
        twin = copy.copy(run)
        twin.target, twin.filling = fork(run.target, memo), fork(run.filling, memo)
        twin.opened = {name: fork(session, memo) for name, session in run.opened.items()}
        twin.pictures = {name: fork(canvas, memo) for name, canvas in run.pictures.items()}
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
