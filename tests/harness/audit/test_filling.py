"""A canvas is bet on in the order of its filling: right samplers are not refuted there, and biased ones are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from stridebench.harness.audit.laws import Filling, filling_of
from stridebench.harness.audit.output import bets_on, target_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.proof.mutants import injected
from stridebench.methods.mulo_sd import DRAFT_ENTRY_STAYS, MuLoSD
from stridebench.methods.zipar import ZipAR

PROMPT, PLAIN = (0, 1), Sampling(1.0)
WIDE, SMALL = (4, 6), (4, 4)
"""Rows and columns of the pictures."""
COLDER = Mutant(
    "stridebench.methods.zipar:ZipAR.step",
    'run.draws.categorical(p[list(rows.values())], "draft")',
    'run.draws.categorical(p[list(rows.values())] ** 2, "draft")',
    "tokens are drawn from p squared",
)


def models(grid: tuple[int, ...]) -> Models:
    """Return a toy of pictures; its drafter is another toy."""
    backbone = Tabular("tabular", {"vocabulary": 5, "grid": grid, "context": 64})
    return Models(backbone, lambda name: backbone.variant({"drafter": name}), PROMPT)


def filled(seed: int, method: ZipAR | MuLoSD, grid: tuple[int, ...] = WIDE) -> Canvas:
    run = Run.of(models(grid), PLAIN, math.prod(grid), SeededDraws(seed, "t", "p", 0))
    assert decode(method, run).tokens == run.canvas.output
    return run.canvas


def read_again(canvas: Canvas, grid: tuple[int, ...] = WIDE) -> Filling:
    filling = filling_of(models(grid).canvas(math.prod(grid)), canvas.history)
    assert filling.logits is not None and len(filling.tokens) == math.prod(grid) and not filling.unseen
    return filling


def audited(canvases: Sequence[Canvas], grid: tuple[int, ...] = WIDE) -> Audit:
    """Bet in the order of filling; no bug is injected here."""
    fillings = [read_again(canvas, grid) for canvas in canvases]
    return audit([bets_on(one.logits, [*PROMPT, *one.tokens], PLAIN, 1e-6) for one in fillings])


def test_every_cell_of_a_picture_is_bet_on_once() -> None:
    canvas = filled(0, ZipAR(window=2))
    filling = read_again(canvas)
    assert sorted(filling.tokens) == sorted(canvas.output) and filling.tokens != list(canvas.output)
    assert filling.logits.shape == (24, 5)


@pytest.mark.parametrize(("grid", "unseen"), [((4, 6), 1), ((4, 1, 4), 0)])
def test_a_position_that_no_pass_saw_is_counted_unless_one_token_is_allowed_there(
    grid: tuple[int, ...], unseen: int
) -> None:
    first, again = (models(grid).canvas(8) for _ in range(2))
    first.read(torch.tensor([1]), [1])
    first.fill(Fill(torch.tensor([2, 3]), torch.tensor([0, 4])))  # the end of a row of one cell is id 4
    filling = filling_of(again, first.history)
    assert (filling.tokens, filling.unseen) == ([0], unseen)


def test_one_row_at_a_time_gives_the_distributions_of_raster_order() -> None:
    canvas = filled(0, ZipAR(window=6))
    filling = read_again(canvas)
    assert tuple(filling.tokens) == canvas.output
    expected = target_logits(models(WIDE).backbone, Prompt("", tokens=PROMPT), canvas.output)
    torch.testing.assert_close(filling.logits, expected)


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_a_right_sampler_is_not_refuted_by_the_order_of_filling(schedule: str) -> None:
    method = ZipAR(window=2, schedule=schedule)  # type: ignore[arg-type]
    result = audited([filled(seed, method) for seed in range(12)])
    assert result.tokens == 12 * 24 and result.log_e < math.log(20)


KEEPS_NONE = MuLoSD(band=2, tau=math.inf)
BIASES = [
    Mutant(
        "stridebench.methods.mulo_sd:CellSampler.draw",
        "self.run.draws.categorical(probs, self.stream)",
        "self.run.draws.categorical(probs**2, self.stream)",
        "cells are drawn from p squared",
    ),
    Mutant(
        "stridebench.methods.mulo_sd:MuLoSD.step",
        '"judge")(run, band, x[at], p)',
        '"judge")(run, band, x[at], p)[::2]',
        "every other draft stays",
    ),
    DRAFT_ENTRY_STAYS,
]


@pytest.mark.audit
@pytest.mark.usefixtures("unchecked")
def test_mulo_sd_that_keeps_no_draft_passes() -> None:
    result = audited([filled(seed, KEEPS_NONE, SMALL) for seed in range(24)], SMALL)
    assert result.tokens == 24 * 16 and result.log_e < math.log(20)


@pytest.mark.audit
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bias", BIASES, ids=lambda bias: bias.why)
def test_a_bias_of_mulo_sd_is_refuted(bias: Mutant) -> None:
    with injected(bias):
        canvases = [filled(seed, KEEPS_NONE, SMALL) for seed in range(48)]
    assert audited(canvases, SMALL).verdict == "refuted"


def test_raster_order_refutes_it_because_it_is_another_distribution_by_design() -> None:
    bets = []
    for canvas in [filled(seed, ZipAR(window=1)) for seed in range(24)]:
        logits = target_logits(models(WIDE).backbone, Prompt("", tokens=PROMPT), canvas.output)
        bets.append(bets_on(logits, [*PROMPT, *canvas.output], PLAIN, 1e-6))
    assert audit(bets).verdict == "refuted"


def test_a_biased_canvas_is_refuted() -> None:
    with injected(COLDER):
        canvases = [filled(seed, ZipAR(window=2)) for seed in range(24)]
    assert audited(canvases).verdict == "refuted"
