"""A canvas is bet on in the order of its filling: right samplers are not refuted there, and biased ones are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from stridebench.harness.audit.bets import Bets
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

PROMPT, PLAIN, SIZE = (0, 1), Sampling(1.0), 24
COLDER = Mutant(
    "stridebench.methods.zipar:ZipAR.step",
    'run.draws.categorical(p[list(rows.values())], "draft")',
    'run.draws.categorical(p[list(rows.values())] ** 2, "draft")',
    "tokens are drawn from p squared",
)


def model() -> Tabular:
    return Tabular("tabular", {"vocabulary": 5, "grid": (4, 6), "context": 64})


def decoded(seed: int, method: ZipAR) -> tuple[Filling, tuple[int, ...]]:
    backbone = model()
    models = Models(backbone, lambda name: backbone, PROMPT)
    run = Run.of(models, PLAIN, SIZE, SeededDraws(seed, "t", "p", 0))
    tokens = decode(method, run).tokens
    again = Models(backbone, lambda name: backbone, PROMPT)
    return filling_of(again.canvas(SIZE), run.canvas.history), tokens


def in_filling_order(method: ZipAR, seeds: int) -> list[Bets]:
    bets = []
    for seed in range(seeds):
        filling, _ = decoded(seed, method)
        assert filling.logits is not None
        bets.append(bets_on(filling.logits, [*PROMPT, *filling.tokens], PLAIN, 1e-6))
    return bets


def test_every_cell_of_a_picture_is_bet_on_once() -> None:
    filling, tokens = decoded(0, ZipAR(window=2))
    assert sorted(filling.tokens) == sorted(tokens) and filling.tokens != list(tokens)
    assert filling.logits is not None and filling.logits.shape == (SIZE, 5)


@pytest.mark.parametrize(("grid", "unseen"), [((4, 6), 1), ((4, 1, 4), 0)])
def test_a_position_that_no_pass_saw_is_counted_unless_one_token_is_allowed_there(
    grid: tuple[int, ...], unseen: int
) -> None:
    backbone = Tabular("tabular", {"vocabulary": 5, "grid": grid, "context": 64})
    first, again = (Models(backbone, lambda name: backbone, PROMPT).canvas(8) for _ in range(2))
    first.read(torch.tensor([1]), [1])
    first.fill(Fill(torch.tensor([2, 3]), torch.tensor([0, 4])))  # the end of a row of one cell is id 4
    filling = filling_of(again, first.history)
    assert (filling.tokens, filling.unseen) == ([0], unseen)


def test_one_row_at_a_time_gives_the_distributions_of_raster_order() -> None:
    filling, tokens = decoded(0, ZipAR(window=6))
    assert tuple(filling.tokens) == tokens and filling.logits is not None
    torch.testing.assert_close(filling.logits, target_logits(model(), Prompt("", tokens=PROMPT), tokens))


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_a_right_sampler_is_not_refuted_by_the_order_of_filling(schedule: str) -> None:
    result = audit(in_filling_order(ZipAR(window=2, schedule=schedule), 12))  # type: ignore[arg-type]
    assert result.tokens == 12 * SIZE and result.log_e < math.log(20)


def four_by_four() -> Tabular:
    return Tabular("tabular", {"vocabulary": 5, "grid": (4, 4), "context": 64})


def filled_by_mulo_sd(seed: int, method: MuLoSD) -> Canvas:
    """A picture of four rows of four, in two bands; the drafter is another toy of half the size."""
    backbone = four_by_four()
    run = Run.of(
        Models(backbone, lambda name: backbone.variant({"drafter": name}), PROMPT),
        PLAIN,
        16,
        SeededDraws(seed, "t", "p", 0),
    )
    decode(method, run)
    return run.canvas


def audited(canvases: Sequence[Canvas]) -> Audit:
    """Bets in the order of filling; no bug is injected here."""
    bets, backbone = [], four_by_four()
    for canvas in canvases:
        filling = filling_of(Models(backbone, lambda name: backbone, PROMPT).canvas(16), canvas.history)
        assert filling.logits is not None and len(filling.tokens) == 16 and not filling.unseen
        bets.append(bets_on(filling.logits, [*PROMPT, *filling.tokens], PLAIN, 1e-6))
    return audit(bets)


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
    result = audited([filled_by_mulo_sd(seed, KEEPS_NONE) for seed in range(24)])
    assert result.tokens == 24 * 16 and result.log_e < math.log(20)


@pytest.mark.audit
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bias", BIASES, ids=lambda bias: bias.why)
def test_a_bias_of_mulo_sd_is_refuted(bias: Mutant) -> None:
    with injected(bias):
        canvases = [filled_by_mulo_sd(seed, KEEPS_NONE) for seed in range(48)]
    assert audited(canvases).verdict == "refuted"


def test_raster_order_refutes_it_because_it_is_another_distribution_by_design() -> None:
    bets = []
    for seed in range(24):
        _, tokens = decoded(seed, ZipAR(window=1))
        logits = target_logits(model(), Prompt("", tokens=PROMPT), tokens)
        bets.append(bets_on(logits, [*PROMPT, *tokens], PLAIN, 1e-6))
    assert audit(bets).verdict == "refuted"


def test_a_biased_canvas_is_refuted() -> None:
    with injected(COLDER):
        bets = in_filling_order(ZipAR(window=2), 24)
    assert audit(bets).verdict == "refuted"
