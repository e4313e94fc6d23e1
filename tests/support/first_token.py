"""The distribution of the first token that acceptance on a tree of one level emits, by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from tests.support.enumerated import enumerated

V = 4
weights = st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0, 2.0]), min_size=V, max_size=V)
distributions = weights.filter(lambda row: sum(row) > 0).map(
    lambda row: torch.tensor(row, dtype=torch.float64) / sum(row)
)


class Emitted(NamedTuple):
    """The distribution of the first emitted token, and the mean number of accepted nodes."""

    probs: torch.Tensor
    accepted: float

    @staticmethod
    def of(act: Callable[[Draws], tuple[Draft, Acceptance]]) -> Emitted:
        probs, accepted = torch.zeros(V, dtype=torch.float64), 0.0
        for weight, (draft, acceptance) in enumerated(act):
            read = acceptance.read()
            probs[int(draft.tokens[read.path[0]]) if read.path else read.token] += weight
            accepted += weight * len(read.path)
        return Emitted(probs, accepted)


def first_token_probs(act: Callable[[Draws], tuple[Draft, Acceptance]]) -> torch.Tensor:
    return Emitted.of(act).probs


def star(tokens: torch.Tensor, probs: torch.Tensor) -> Draft:
    """A draft of one level."""
    return Draft(tokens.reshape(-1), probs.reshape(-1, V), parents=torch.full((tokens.numel(),), -1))


def rows(p: torch.Tensor, nodes: int) -> torch.Tensor:
    return p.expand(nodes + 1, -1)
