"""SJD-PAC: the tree of a window, SJD++ without alternatives, and more accepted drafts with them."""

from __future__ import annotations

from typing import Any

import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.sjd_pac import SJDPAC, with_alternatives
from stridebench.methods.sjdpp import SJDPlusPlus
from tests.support import toys


def decoded(method: Any, seed: int) -> Decode:
    return toys.decoded(method, Sampling(1.0), 40, prompt=(0, 1, 2), seed=seed, vocabulary=6)


def test_the_tree_of_a_window_by_hand() -> None:
    """Two levels of two: the second level's drafts stand below both nodes of the first, and the window goes on."""
    q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    tree = with_alternatives(Draft(torch.tensor([0, 2, 1, 0]), q), 2, 2, SeededDraws(0, "t", "p", 0))
    assert tree.draft.tokens.tolist() == [0, 1, 2, 0, 2, 0, 1, 0]
    assert tree.draft.explicit_parents.tolist() == [-1, -1, 0, 0, 1, 1, 2, 6]
    assert tree.main.tolist() == [0, 2, 6, 7]
    assert tree.draft.probs is not None
    assert tree.draft.probs[[1, 3, 5]].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert torch.equal(tree.draft.probs[tree.main], q)


def test_one_sibling_is_sjdpp_with_reuse_m() -> None:
    for seed in range(3):
        one = decoded(SJDPAC(window=5, width=1), seed)
        other = decoded(SJDPlusPlus(window=5, reuse="M"), seed)
        assert one.tokens == other.tokens
        assert [step.accepted for step in one.steps] == [step.accepted for step in other.steps]


def test_alternatives_accept_more_drafts_a_pass() -> None:
    """Of 8 decodes of 40 tokens each."""
    passes = {
        width: sum(len(decoded(SJDPAC(window=5, width=width), seed).steps) for seed in range(8)) for width in (1, 3)
    }
    assert passes[3] < 0.9 * passes[1]
