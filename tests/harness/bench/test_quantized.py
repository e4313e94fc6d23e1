"""What the benchmark of quantised weights says of a model."""

from __future__ import annotations

import pytest

from stridebench.harness.bench import peers, quantized
from stridebench.harness.bench.paired import Settings
from tests.support.tiny_text import tiny

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6]]


def test_laws_move_more_in_four_bits_than_in_eight_and_not_in_sixteen() -> None:
    full, *coarse = (tiny(dtype="bf16", config=SIZES, weights=weights) for weights in ("full", "int8", "int4"))
    moved = [quantized.distance_of_laws(side, full, PROMPTS, 12) for side in (full, *coarse)]
    assert moved[0] == (0, 1)
    assert 0 < moved[1][0] < moved[2][0]
    assert moved[2][1] < 1


def test_a_window_costs_something() -> None:
    assert quantized.window_cost(tiny(dtype="fp32"), PROMPTS[0]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone",
    ["embedded-code", pytest.param("smollm2-135m", marks=[pytest.mark.audit, pytest.mark.model])],
)
def test_the_benchmark_compares_the_formats_of_one_model(backbone: str) -> None:
    settings = Settings(pairs=2, tokens=8, threads=1, backbone=backbone)
    (result,) = peers.run(settings, "quantized int4", lambda line: None)
    assert result.ours > 0 and result.pairs == 2 and "nats a token" in result.note
