"""Several windows in one pass: which rows go to which sequence, and when they are read apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.cache import PackedWindow, extend_packed, last_rows, layers
from stridebench.harness.backbones.slots.net import Slots
from stridebench.harness.core.cache import Rows, Window


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
