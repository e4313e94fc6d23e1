"""The window of DeepMesh's sampler: where it starts, and that every row reads exactly the entries from there on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.backbones.mesh.bpt import EncoderSizes
from stridebench.harness.backbones.mesh.deepmesh import Conditioned, DeepMesh, DeepMeshSizes, HourglassCache
from stridebench.harness.backbones.mesh.published import PointMesh, SlidingCache, start_of
from stridebench.harness.core.cache import Window
from stridebench.harness.errors import ContractError
from tests.support.caches import check_history, check_tree, feed, feed_windows
from tests.support.tiny_mesh import ENCODER, POINT_SIZES, seeded_by_names

WINDOW, CONTEXT = 36, 100
TOKENS = np.random.default_rng(3).integers(0, 4700, CONTEXT).tolist()
NEAR = 1e-4


@pytest.fixture(scope="module")
def net() -> Conditioned:
    """A tiny model of a window of 36, which forgets 18, and one point cloud."""
    sizes = {**POINT_SIZES["deepmesh"], "window": WINDOW, "context": CONTEXT}
    params = {"architecture": "deepmesh", "random": {"seed": 1, "sizes": sizes, "encoder": ENCODER}}
    model: Any = PointMesh.load("tiny", params, "fp32", "cpu")._model
    with torch.inference_mode():
        points = torch.from_numpy(np.random.default_rng(4).normal(size=(40, 6)).astype(np.float32))
        return Conditioned.of(model, model.rotations(), points)


def fresh(net: Conditioned, tokens: Sequence[int]) -> Tensor:
    """Logits of all rows; those of each start are read at once by an empty cache, from the start on."""
    starts = start_of(np.arange(len(tokens)), WINDOW)
    rows = []
    for start in np.unique(starts).tolist():
        end = int(np.flatnonzero(starts == start)[-1]) + 1
        ids = torch.tensor(tokens[start:end])
        logits = HourglassCache(net).extend(Window(ids, torch.arange(start, end), 0, None, end - start)).logits
        rows.append(logits[np.flatnonzero(starts == start) - start])
    return torch.cat(rows)


def test_the_window_starts_where_the_released_sampler_starts_it() -> None:
    """Its own lines: cur_pos tokens are there, and those from ``start`` on are read."""
    released, first = {}, 0
    for cur_pos in range(1, 30_000):
        if cur_pos >= 9001 and (cur_pos - 9001) % 4500 == 0:
            first = 4500 + ((cur_pos - 9001) // 4500) * 4500
            assert cur_pos - first == 4501
        released[cur_pos - 1] = first  # the row of the last token attends from there
    assert start_of(np.array([*released]), 9000).tolist() == [*released.values()]


@pytest.mark.parametrize("cuts", [[0, *range(20, 57), 71], [0]])
def test_windows_of_any_size_read_from_the_start_on(net: Conditioned, cuts: Sequence[int]) -> None:
    tokens = TOKENS[: CONTEXT - 4]
    logits, expected = feed_windows(SlidingCache(net), tokens, list(cuts)), fresh(net, tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=NEAR)
    everything = feed(HourglassCache(net), tokens[:WINDOW], 0)
    torch.testing.assert_close(logits[:WINDOW], everything, rtol=0, atol=NEAR)


@pytest.mark.slow
def test_logits_are_those_of_the_published_code() -> None:
    """Two forgettings; names seed the weights."""
    encoder = EncoderSizes(**{**ENCODER, "out": 1024})
    model = DeepMesh(DeepMeshSizes(32, 2, 48, window=WINDOW, context=CONTEXT, points=40, encoder=encoder))
    model.requires_grad_(False)
    seeded_by_names(model)
    points = torch.from_numpy(np.random.default_rng(4).normal(size=(40, 6)).astype(np.float32))
    tokens = [DeepMesh.prompt, *TOKENS[:99]]
    logits = feed_windows(SlidingCache(Conditioned.of(model, model.rotations(), points)), tokens, [0, 36, 37, 50, 54])
    reference = json.loads((Path(__file__).parent / "published_reference.json").read_text())["deepmesh_sliding"]
    found = logits[[0, 35, 36, 37, 53, 54, 55, 72, 99]][:, ::640]
    assert found.std() > 0.5
    torch.testing.assert_close(found, torch.tensor(reference), rtol=0, atol=1e-3)


def test_only_two_stretches_are_held_and_the_old_one_goes(net: Conditioned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.harness.backbones.mesh.published.SLACK", 4)
    cache = SlidingCache(net)
    feed(cache, TOKENS[:35], 0)
    for at in range(35, 60):
        feed(cache, TOKENS[at : at + 1], at)
        assert sorted(cache._stretches) == ([0] if at < 36 else [0, 18] if at < 40 else [18] if at < 54 else
                                            [18, 36] if at < 58 else [36])  # fmt: skip


@pytest.mark.parametrize("prefix", [33, 53])
def test_a_tree_over_the_start_gives_each_node_the_logits_of_its_own_chain(net: Conditioned, prefix: int) -> None:
    tree = (TOKENS[:prefix], TOKENS[60:70], [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7])
    check_tree(SlidingCache(net), partial(fresh, net), tree, (1, 3, 5, 7), TOKENS[70:75], NEAR)


@pytest.mark.slow
@settings(max_examples=6)
@given(data=st.data())
def test_after_any_history_the_cache_equals_a_fresh_one(net: Conditioned, data: st.DataObject) -> None:
    cache = SlidingCache(net)
    cache.keep(0)
    sliding = WINDOW - data.draw(st.integers(0, 6))
    feed(cache, TOKENS[:sliding], 0)

    class Shifted:
        """The cache behind a prefix, as `check_history` counts from 0."""

        def extend(self, window: Window) -> Any:
            return cache.extend(Window(window.tokens, window.positions + sliding, window.base + sliding, None,
                                       window.rows))  # fmt: skip

        def keep(self, length: int, entries: Sequence[int] = ()) -> None:
            cache.keep(length + sliding, entries)

    check_history(data, Shifted(), lambda tokens: fresh(net, [*TOKENS[:sliding], *tokens])[sliding:], 4600, 60, NEAR)  # type: ignore[arg-type]  # it has both calls


def test_the_context_foreign_entries_and_trees_under_a_start_are_refused(net: Conditioned) -> None:
    cache = SlidingCache(net)
    with pytest.raises(ContractError, match="context of 100"):
        feed(cache, [*TOKENS, 1], 0)
    feed(cache, TOKENS[:20], 0)
    with pytest.raises(ContractError, match="keep"):
        cache.keep(19, (3,))
    with pytest.raises(ContractError, match="base"):
        cache.extend(Window(torch.tensor([1]), torch.tensor([20]), 21, None, 1))
    sees = torch.tensor([[True, False, False], [False, True, False], [True, False, True]])
    cache.extend(Window(torch.tensor([1, 2, 3]), torch.tensor([20, 20, 21]), 20, sees, 0))
    with pytest.raises(ContractError, match="a tree holds position 18"):
        cache.extend(Window(torch.tensor([1]), torch.tensor([36]), 23, None, 1))
