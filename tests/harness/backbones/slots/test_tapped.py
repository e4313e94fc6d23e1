"""A pass that also gives hidden rows gives the logits of one that does not."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.core.cache import Rows, Window
from tests.support.tiny_text import tiny

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
