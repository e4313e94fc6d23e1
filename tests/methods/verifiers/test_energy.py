"""Tests by energy: what becomes of a draft that no pass has read."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.methods.verifiers.energy import without_last_node


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_last_draft_without_a_node_is_passed_only_where_all_drafts_are_accepted(accepted: int) -> None:
    nodes = torch.tensor([*range(accepted), *[-1] * (3 - accepted)])
    path = Path(nodes, torch.tensor(accepted), torch.tensor(0.5))
    short = without_last_node(Acceptance(path, torch.tensor(7)))
    assert short.path.nodes.tolist() == nodes[:2].tolist()
    assert int(short.path.stop) == min(accepted, 2)
    assert bool(short.passed) is (accepted == 3)
    assert int(short.token) == 7
