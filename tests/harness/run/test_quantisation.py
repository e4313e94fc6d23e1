"""What the rounding of weights costs, beside the weights as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stridebench.harness.core.method import Method
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan.cells import Cell
from stridebench.harness.plan.entries import TaskUse
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.registry import METHODS
from stridebench.harness.run.group import adapted, distance, notes, unquantised
from stridebench.tasks.humaneval import LongContext
from tests.support.tiny_text import tiny


def cell_of(method: Method[Any], backbone: str, length: int) -> Cell:
    return Cell(
        PlannedMethod.of(method),
        backbone,
        "bf16",
        TaskUse("long_context", LongContext(), None),
        Sampling(0.0),
        length,
        True,
        0,
    )


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("smollm2-135m:weights=int4", "smollm2-135m"),
        ("smollm2-135m:attn=eager,weights=int8", "smollm2-135m:attn=eager"),
        ("smollm2-135m:weights=nf4", "smollm2-135m"),
        ("smollm2-135m", None),
        ("smollm2-135m:weights=full", None),
        ("hub:org/name:weights=int4", "hub:org/name"),
        ("tiny:llama2-7b", None),
    ],
)
def test_the_same_backbone_without_its_format(name: str, full: str | None) -> None:
    assert unquantised(name) == full


@pytest.mark.parametrize(("form", "note"), [("int4", "is added to the int4 ones of smollm2-135m"), ("", "")])
def test_an_adapter_on_rounded_weights_is_said_once(form: str, note: str) -> None:
    backbone = "smollm2-135m" + f":weights={form}" * bool(form)
    method, other = (METHODS.get(name)() for name in ("cross_regression", "prompt_lookup"))
    cells = [cell_of(one, backbone, length) for one in (method, other) for length in (8, 16)]
    assert [adapted(cell) for cell in cells] == [form or None] * 2 + [None] * 2
    lines = notes(cells, "cpu")
    assert len(lines) == bool(note) and all(note in one and one.startswith("cross_regression: ") for one in lines)


@pytest.mark.parametrize(
    ("dtype", "backbone", "device", "said"),
    [
        ("fp32", "smollm2-135m:weights=int4", "cpu", True),
        ("bf16", "smollm2-135m:weights=int4", "cpu", False),
        ("fp32", "smollm2-135m", "cpu", False),
        ("fp32", "smollm2-135m:weights=nf4", "cpu", False),
        ("fp32", "smollm2-135m:weights=int8", "cuda", False),
    ],
)
def test_a_type_in_which_rounded_weights_gain_nothing_is_said(
    dtype: str, backbone: str, device: str, said: bool
) -> None:
    cell = replace(cell_of(METHODS.get("prompt_lookup")(), backbone, 8), dtype=dtype)
    assert any("which gains no speed" in line for line in notes([cell], device)) == said


def test_fewer_bits_move_the_distributions_further() -> None:
    full, *coarse = (tiny(dtype="bf16", config=SIZES, weights=weights) for weights in ("full", "int8", "int4"))
    outputs = [(Prompt("a", tokens=(3, 1, 4)), (1, 5, 9, 2, 6, 5)), (Prompt("b", tokens=(2, 7)), (1, 8, 2, 8))]
    assert distance(full, full, outputs) == (0.0, 1.0)
    (eight, _), (four, same) = (distance(full, side, outputs) for side in coarse)
    assert 0 < eight < four
    assert 0 <= same <= 1
