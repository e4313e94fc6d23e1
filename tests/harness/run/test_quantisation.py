"""What the rounding of weights costs, beside the weights as they are."""

from __future__ import annotations

import pytest

from harness.core.task import Prompt
from harness.run.quantisation import distance, unquantised
from tests.support.tiny_text import tiny

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("smollm2-135m:weights=int4", "smollm2-135m"),
        ("smollm2-135m:attn=eager,weights=int8", "smollm2-135m:attn=eager"),
        ("smollm2-135m", None),
        ("smollm2-135m:weights=full", None),
        ("hub:org/name:weights=int4", "hub:org/name"),
        ("tiny:llama2-7b", None),
    ],
)
def test_the_same_backbone_without_its_format(name: str, full: str | None) -> None:
    assert unquantised(name) == full


def test_fewer_bits_move_the_distributions_further() -> None:
    full, *coarse = (tiny(dtype="bf16", config=SIZES, weights=weights) for weights in ("full", "int8", "int4"))
    outputs = [(Prompt("a", tokens=(3, 1, 4)), (1, 5, 9, 2, 6, 5)), (Prompt("b", tokens=(2, 7)), (1, 8, 2, 8))]
    assert distance(full, full, outputs) == (0.0, 1.0)
    (eight, _), (four, same) = (distance(full, side, outputs) for side in coarse)
    assert 0 < eight < four
    assert 0 <= same <= 1
