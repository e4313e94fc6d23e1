"""Draws that take every outcome in turn, each with its probability."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Path
from stridebench.harness.core.draws import Draws, SeededDraws, Stream, check_distinct
from stridebench.harness.errors import EnumerationLimit
from stridebench.harness.proof.simplex import Polygon, area_of, simplex, winner


class Script:
    """The choices along one outcome, and the outcomes that are left. Draws that share a script are enumerated jointly.

    Args:
        widest: the most outcomes of one step: the product of its draws' branches along an outcome.

    Attributes:
        weight: the probability of the choices so far.
        branches: outcomes that were left for later, by what was drawn.
    """

    def __init__(self, widest: float = math.inf) -> None:
        self.weight = 1.0
        self.branches: Counter[str] = Counter()
        self._widest, self._width = widest, 1.0
        self._script: list[int] = []
        self._cursor = 0
        self._stack: list[list[int]] = []

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
        start: that seed.
        most: the most outcomes of a whole enumeration.
        script: of several draws that are enumerated jointly; None: one of its own.
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
        """Outcomes that were left for later, by what was drawn."""
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
        """The outcome of the n-th pinned draw of a step."""
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
