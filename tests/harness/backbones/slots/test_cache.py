"""Masks of a slot cache."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.slots.cache import KEPT_MASK, Masks
from stridebench.harness.backbones.slots.net import FIRST
from stridebench.harness.core.cache import Window


@pytest.mark.parametrize("cached", [1, 5, 40])
@pytest.mark.parametrize("count", [2, 3, 65])
def test_causal_masks_hide_later_entries(cached: int, count: int) -> None:
    masks = Masks(128, torch.float32, torch.device("cpu"))
    window = Window(torch.zeros(count, dtype=torch.long), torch.arange(count), cached, None, count)
    allowed = torch.arange(cached + count)[None] <= cached + torch.arange(count)[:, None]
    for _ in range(2):  # built, then sliced from what was built
        mask = masks(window, cached)
        assert mask is not None
        assert torch.equal(mask == 0, allowed)
        assert torch.equal(mask == float("-inf"), ~allowed)


@pytest.mark.parametrize("count", [2, KEPT_MASK, KEPT_MASK + 1])
def test_causal_masks_grow_with_the_cached_entries(count: int) -> None:
    """Past the entries allocated at first, and back again."""
    masks = Masks(4 * FIRST, torch.float32, torch.device("cpu"))
    for cached in (5, FIRST - count, FIRST, FIRST + 1, 3 * FIRST, 4 * FIRST - count, 7):
        window = Window(torch.zeros(count, dtype=torch.long), torch.arange(count), cached, None, count)
        mask = masks(window, cached)
        assert mask is not None
        assert torch.equal(mask == 0, torch.arange(cached + count)[None] <= cached + torch.arange(count)[:, None])


def test_causal_masks_of_up_to_64_rows_are_slices_of_one_buffer() -> None:
    masks = Masks(4 * FIRST, torch.float32, torch.device("cpu"))
    for count, shared in ((2, True), (64, True), (65, False)):
        window = Window(torch.zeros(count, dtype=torch.long), torch.arange(count), 5, None, count)
        places = {
            mask.untyped_storage().data_ptr() for mask in (masks(window, 5), masks(window, 9)) if mask is not None
        }
        assert len(places) == (1 if shared else 2)
