"""GSD: groups counted by hand, the target's distribution at width 0, and a grid with ends of rows."""

from __future__ import annotations

from typing import Any

import torch

from stridebench.harness.core.sampling import Sampling
from stridebench.methods.gsd import GSD, group, group_acceptance, mean_distance, near_codes
from stridebench.methods.sjd import SJD
from tests.support.toys import decoded

P = torch.tensor([[0.05, 0.4, 0.3, 0.15, 0.1]], dtype=torch.float64)
ALL = torch.ones(1, 5, dtype=torch.bool)
CODEBOOK = torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.9], [9.0, 9.0]], dtype=torch.float64)


def marked(token: int, near: torch.Tensor = ALL, width: int = 1, gap: float = 1.0) -> list[int]:
    return group(torch.tensor([token]), P, near, width, gap)[0].nonzero()[:, 0].tolist()


class TestGroups:
    def test_ranks_from_width_above_to_width_less_one_below(self) -> None:
        """Ranked 1, 2, 3, 4, 0: the slice [r - 2, r + 2) of token 3, rank 2, is ranks 0 to 3."""
        assert marked(3, width=2) == [1, 2, 3, 4]
        assert marked(3, width=1) == [2, 3]

    def test_the_most_probable_token_is_in_its_own_group(self) -> None:
        """The released slice begins before rank 0 and is empty there."""
        assert marked(1, width=1) == [1]
        assert marked(1, width=2) == [1, 2]

    def test_tokens_too_far_in_probability_or_embedding_stay_out(self) -> None:
        assert marked(3, width=2, gap=0.16) == [2, 3, 4]
        assert marked(3, width=2, near=torch.tensor([[True, True, False, False, True]])) == [1, 3, 4]

    def test_width_zero_is_the_token_alone(self) -> None:
        assert [marked(token, width=0) for token in range(5)] == [[token] for token in range(5)]

    def test_acceptance_is_the_ratio_of_the_groups_masses(self) -> None:
        q = torch.tensor([[0.1, 0.5, 0.1, 0.2, 0.1]], dtype=torch.float64)
        groups = torch.tensor([[False, True, False, True, False]])
        accept_probs = group_acceptance(torch.tensor([3]), q, P, groups)
        torch.testing.assert_close(accept_probs, torch.tensor([0.55 / 0.7], dtype=torch.float64))
        assert float(group_acceptance(torch.tensor([2]), q, P, torch.tensor([[False, False, True, False, False]]))) == 1

    def test_near_codes_are_those_within_a_share_of_the_mean_distance(self) -> None:
        mean = torch.cdist(CODEBOOK, CODEBOOK).square().mean().sqrt()
        torch.testing.assert_close(mean_distance(CODEBOOK), mean)
        share = 1.5 / float(mean)
        assert near_codes(CODEBOOK, torch.tensor([0, 2]), share).tolist() == [
            [True, True, False, True, False],
            [False, False, True, False, False],
        ]


def passes(method: Any) -> int:
    result = decoded(method, Sampling(1.0), 42, vocabulary=7, seed=3, grid=[6, 6, 6], context=80)
    assert [place for place, token in enumerate(result.tokens) if token == 6] == list(range(6, 42, 7))
    assert sum(step.forced for step in result.steps) == 6
    return len(result.steps)


def test_groups_save_passes_on_a_grid_with_ends_of_rows() -> None:
    assert passes(GSD(window=8, gap=1.0, reach=10.0)) < passes(SJD(window=8)) == passes(GSD(window=8, width=0))
