"""The nets of heads: by hand, loaded as saved, and damaged weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stridebench.harness.errors import WeightsError
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.heads.net import Config, Heads
from tests.support.random_heads import random_heads


def saved(heads: Heads, folder: Path) -> Path:
    save_bf16(heads, folder)
    heads.config.write(folder)
    return folder


def tied_embeddings(heads: Heads) -> Callable[[], Any]:
    unembed = torch.zeros(7, 4).index_copy(0, heads.ids, heads.shared)
    return lambda: SimpleNamespace(unembed=unembed, lift=None)


class TestNets:
    def test_new_heads_have_the_targets_logits(self) -> None:
        unembed, rows = torch.randn(7, 4), torch.randn(5, 1, 4)
        for inner in (0, 6):
            logits = Heads(Config("toy", "", 4, heads=3, inner=inner), unembed)(rows)
            torch.testing.assert_close(logits, (rows[:, 0] @ unembed.T).expand(3, -1, -1))

    def test_a_head_is_the_residual_block_of_the_paper(self) -> None:
        heads, row = random_heads(heads=2), torch.randn(1, 1, 4)
        weight, bias = heads.blocks[0].last[1], heads.blocks[0].bias[1, 0]
        z = row[0, 0] @ weight.T + bias
        expected = heads.shared @ (row[0, 0] + z * z.sigmoid())
        torch.testing.assert_close(heads(row)[1, 0], expected)

    def test_logits_of_two_branches_are_guided_as_the_targets_are(self) -> None:
        heads = random_heads(guidance=3.0)
        rows = torch.randn(5, 2, 4)
        single = random_heads()
        cond, uncond = single(rows[:, :1]), single(rows[:, 1:])
        torch.testing.assert_close(heads(rows), uncond + 3 * (cond - uncond))

    @pytest.mark.parametrize("settings", [{}, {"kept": 3}, {"own": True}, {"inner": 6, "layers": 2}])
    def test_loaded_heads_are_the_saved_ones(self, settings: dict[str, Any], tmp_path: Path) -> None:
        heads = random_heads(**settings)
        loaded = Heads.load(saved(heads, tmp_path), tied_embeddings(heads))
        rows = torch.randn(3, 1, 4)
        assert torch.equal(loaded(rows), heads(rows)) and torch.equal(loaded.ids, heads.ids)
        assert loaded.config == heads.config

    def test_missing_and_damaged_weights_are_named(self, tmp_path: Path) -> None:
        heads = random_heads()
        with pytest.raises(WeightsError, match=r"holds no heads.*config\.json.*stride train drafter"):
            Heads.load(tmp_path, tied_embeddings(heads))
        saved(random_heads(heads=2), tmp_path)
        heads.config.write(tmp_path)
        with pytest.raises(WeightsError, match="size mismatch"):
            Heads.load(tmp_path, tied_embeddings(heads))
        heads.blocks[0].bias.data[0, 0, 1] = float("nan")
        with pytest.raises(WeightsError, match=r"blocks\.0\.bias holds NaN or infinite numbers"):
            Heads.load(saved(heads, tmp_path), tied_embeddings(heads))
