"""Several windows in one pass: which rows go to which sequence, and when they are read apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.cache import KEPT_MASK, Masks, PackedWindow, extend_packed, last_rows, layers
from stridebench.harness.backbones.slots.net import FIRST, Slots
from stridebench.harness.core.cache import Rows, Window
from tests.support.tiny_text import tiny


class Echo:
    """A net whose logits are the tokens with logits, and whose hidden rows are all tokens."""

    kind = "echo"
    layers = 2

    def joins(self, other: object) -> bool:
        return other is self

    def packed(self, tokens: Tensor, positions: Tensor, parts: Sequence[PackedWindow]) -> Rows:
        rows = tokens[last_rows(parts)].float()[:, None]
        return Rows(rows, tokens.float()[:, None, None, None] if parts[0].window.taps else None)


def window(tokens: Sequence[int], rows: int, taps: tuple[int, ...] = ()) -> Window:
    return Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, rows, taps)


def parts(net: object, *windows: Window) -> list[PackedWindow]:
    return [PackedWindow(net, Slots(2, 16), one, None) for one in windows]  # type: ignore[arg-type]


WINDOWS = (window([3, 1, 4, 1, 5], 3), window([9, 2], 1), window([6], 0), window([7, 8], 2))


def test_the_rows_with_logits_are_the_last_of_each_window() -> None:
    assert last_rows(parts(Echo(), *WINDOWS)) == [2, 3, 4, 6, 8, 9]


@pytest.mark.parametrize("taps", [(), (0, 2)])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_logits_and_hidden_rows_go_back_to_their_sequences(taps: tuple[int, ...], count: int) -> None:
    packed = parts(Echo(), *(replace(one, taps=taps) for one in WINDOWS[:count]))
    read = extend_packed(packed)
    assert read is not None
    for part, rows in zip(packed, read, strict=True):
        assert isinstance(rows, Rows)
        tokens = part.window.tokens.tolist()
        assert rows.logits[:, 0].tolist() == tokens[len(tokens) - part.window.rows :]
        assert part.slots.length == len(tokens)
        assert rows.hidden is None if not taps else rows.hidden.flatten().tolist() == tokens


def test_windows_of_other_nets_or_taps_are_read_separately() -> None:
    one = Echo()
    assert extend_packed(parts(one, WINDOWS[0])) is None
    assert extend_packed([*parts(one, WINDOWS[0]), *parts(Echo(), WINDOWS[1])]) is None
    assert extend_packed(parts(object(), *WINDOWS)) is None
    for taps in ((0,), (1,), (2,)):
        assert extend_packed(parts(one, window([1], 1, (1,)), window([1], 1, taps))) is None or taps == (1,)
        assert extend_packed(parts(one, window([1], 1), window([1], 1, taps))) is None


def test_masks_are_repeated_for_the_query_heads_of_a_key_head() -> None:
    mask = torch.arange(6.0).view(2, 3)
    first, second = parts(Echo(), window([1, 2], 1), window([4], 1))
    packed = layers([first._replace(mask=mask), second], 3)
    assert len(packed) == 2
    for index, layer in enumerate(packed):
        assert layer.counts == [2, 1] and layer.masks[1] is None
        assert torch.equal(layer.masks[0], torch.cat([mask, mask, mask]))
        assert layer.slots == [first.slots.layers[index], second.slots.layers[index]]


# A pass that also gives hidden rows gives the logits of one that does not.


TOKENS = [7, 3, 41, 12, 5, 60]


@pytest.mark.parametrize("forward", ["fused", "transformers"])
@pytest.mark.parametrize("rows", [0, 1, 3, 6])
def test_taps_leave_the_logits_as_they_are(forward: str, rows: int) -> None:
    model = tiny(forward=forward)

    def read(taps: tuple[int, ...]) -> Rows:
        window = Window(torch.tensor(TOKENS), torch.arange(6), 0, None, rows, taps)
        return model.cache().extend(window)

    plain, tapped = read(()), read((0, 2))
    assert plain.hidden is None and tapped.hidden is not None
    assert tuple(tapped.hidden.shape) == (6, 1, 2, 48) and tuple(tapped.logits.shape) == (rows, 61)
    torch.testing.assert_close(tapped.logits, plain.logits, rtol=0, atol=1e-9)


# Masks of a slot cache.


@pytest.mark.parametrize("cached", [1, 5, 40])
@pytest.mark.parametrize("count", [2, 3, 65])
def test_causal_masks_hide_later_entries(cached: int, count: int) -> None:
    """One row sees all entries and has no mask."""
    masks = Masks(128, torch.float32, torch.device("cpu"))
    assert masks(Window(torch.tensor([1]), torch.tensor([6]), cached, None, 1), cached) is None
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
