"""Drafts of one text, made twice, are compared place by place along the accepted path."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.audit.drafters import FLIPS, LIMITS, compare, limit
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import KeptDraft

P = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4], [1.0, 0.0, 0.0]], dtype=torch.float64)


def kept(draft: Draft, *path: int) -> KeptDraft:
    return KeptDraft(4, draft, path, SeededDraws(0, "test", "p", 0))


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens)


def chain(tokens: tuple[int, ...], *q: tuple[float, ...]) -> Draft:
    return Draft(ids(*tokens), torch.tensor(q, dtype=torch.float64))


def test_a_chain_is_compared_down_to_the_rejected_draft() -> None:
    recorded = chain((0, 1, 2), (0.6, 0.2, 0.2), (0.2, 0.8, 0.0), (0.0, 0.0, 1.0))
    anew = chain((0, 1, 2), (0.6, 0.2, 0.2), (0.2, 0.3, 0.5), (1.0, 0.0, 0.0))
    first, second = compare(kept(recorded, 0), anew, P)
    assert first == pytest.approx((0.0, 0.9, 0.9, 0))
    assert second == pytest.approx((0.5, 0.6, 0.9, 0))  # min(p, q): 0.2 + 0.4 + 0, and 0.2 + 0.3 + 0.4


def test_the_comparison_ends_where_the_two_drafts_part() -> None:
    recorded = chain((0, 1), (0.6, 0.2, 0.2), (0.2, 0.8, 0.0))
    anew = chain((2, 1), (0.6, 0.2, 0.2), (0.0, 0.0, 1.0))
    assert len(compare(kept(recorded, 0), anew, P)) == 1


def test_the_end_of_the_text_ends_the_comparison() -> None:
    recorded = chain((0, 1), (0.6, 0.2, 0.2), (0.2, 0.8, 0.0))
    assert len(compare(kept(recorded, 0, 1), recorded, P[:1])) == 1


def test_siblings_of_point_masses_are_compared_as_sets() -> None:
    recorded = Draft(ids(0, 1, 2), parents=ids(-1, -1, 0))
    anew = Draft(ids(1, 2, 2), parents=ids(-1, -1, 0))
    (place,) = compare(kept(recorded), anew, P)
    assert place == pytest.approx((0.5, 0.75, 0.5, 1))


def test_the_first_of_drawn_siblings_counts_and_repeats_do_not() -> None:
    q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    draft = Draft(ids(0, 0, 1), q, ids(-1, -1, -1), repeats=torch.tensor([False, True, False]))
    (place,) = compare(kept(draft), Draft(draft.tokens, other, draft.parents, repeats=draft.repeats), P)
    assert place == pytest.approx((0.0, 0.75, 0.75, 0))


def test_siblings_that_are_not_equally_many_are_left_out() -> None:
    recorded, anew = Draft(ids(0, 1), parents=ids(-1, 0)), Draft(ids(0, 1, 1), parents=ids(-1, -1, 0))
    assert [place.distance for place in compare(kept(recorded, 0), anew, P)] == [0.0]


def test_the_limit_of_rounding_by_hand() -> None:
    assert limit("fp32", 20, 0) == LIMITS["fp32"] and limit("bf16", 5, 0) == LIMITS["bf16"]
    assert limit("bf16", 20, 10) == pytest.approx((10 * LIMITS["bf16"] + 10 * FLIPS["bf16"] + 1) / 20)
