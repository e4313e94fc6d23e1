"""LPD and PAR: the cells of each group, their reference, what a pass reads, and the error if no weights are here."""

from __future__ import annotations

from typing import Any

import pytest

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import incompatibility
from stridebench.harness.proof.cases import QUERY_CASES, Case, order_of
from stridebench.harness.proof.distance import distance, method_law, reference_law
from stridebench.harness.proof.prove import prove
from stridebench.harness.registry import METHODS
from stridebench.methods.lpd import LPD, closeness, next_group
from stridebench.methods.par import PAR
from tests.support import toys

PICTURE = Grid(8, 8)
SHEET = "1,1,2,3,4,5,6,7,8,9,9,9"
"""Groups of 64 cells that take 12 passes."""


def opened(rows: int, columns: int, length: int) -> Run:
    model = MaskedTabular("toy", {"vocabulary": 5, "grid": (rows, columns), "context": 80})
    return toys.opened(Sampling(1.0), length, model=model)


def decoded(method: Method[Any], rows: int = 8, columns: int = 8, length: int = 64) -> Decode:
    return decode(method, opened(rows, columns, length))


class TestGroups:
    @pytest.mark.parametrize(
        "method", [LPD(SHEET), LPD(), LPD("2,5", repulsion=2, order_seed=3), PAR(1), PAR(2), PAR(4)]
    )
    def test_every_cell_is_in_one_group(self, method: LPD | PAR) -> None:
        assert sorted(method.cell_order(PICTURE)) == list(range(64))

    def test_lpd_takes_the_sizes_in_their_order_and_repeats_the_last(self) -> None:
        sizes = [len(group) for group in LPD(SHEET).cells(PICTURE)]
        assert sizes == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9]
        assert [len(group) for group in LPD("1,2,60").cells(PICTURE)] == [1, 2, 60, 1]
        assert [len(group) for group in LPD(30).cells(PICTURE)] == [30, 30, 4]

    def test_closeness_is_the_sum_of_inverse_distances_to_known_neighbours(self) -> None:
        known = [(0, 0), (0, 1), (3, 3)]
        assert closeness((1, 1), known) == pytest.approx(1 + 2**-0.5)
        assert closeness((0, 2), known) == 1.0 and closeness((2, 2), known) == pytest.approx(2**-0.5)
        assert closeness((5, 5), known) == 0

    def test_cells_next_to_known_ones_come_first_and_stay_apart(self) -> None:
        left = [(row, column) for row in range(5) for column in range(5) if (row, column) != (2, 2)]
        assert next_group(left, [(2, 2)], 4, 0) == [(1, 2), (2, 1), (2, 3), (3, 2)]
        assert next_group(left, [(2, 2)], 2, 1) == [(1, 2), (3, 2)]

    def test_cells_farthest_from_those_taken_follow(self) -> None:
        left = [(row, column) for row in range(5) for column in range(5) if (row, column) != (2, 2)]
        assert next_group(left, [(2, 2)], 4, 1)[2:] == [(0, 0), (0, 4)]
        taken = next_group(left, [], 3, 1)
        assert taken == [(0, 0), (4, 4), (0, 4)]

    def test_another_seed_gives_another_order_and_the_same_seed_the_same(self) -> None:
        first, again, other = (LPD(SHEET, order_seed=seed).cells(PICTURE) for seed in (0, 0, 1))
        assert first == again != other

    def test_par_takes_corners_one_by_one_and_then_one_cell_of_each_region(self) -> None:
        groups = PAR(2).cells(Grid(4, 4))
        assert groups == [[0], [2], [8], [10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
        assert list(PAR(1).cell_order(PICTURE)) == list(range(64)), "raster order"
        for regions in (1, 2, 4):
            assert len(PAR(regions).cells(PICTURE)) == regions**2 + 64 // regions**2 - 1


class TestPasses:
    @pytest.mark.parametrize(
        ("method", "passes"), [(LPD(SHEET), 12), (PAR(2), 19), (PAR(4), 19), (LPD(), 64), (PAR(1), 64)]
    )
    def test_a_group_takes_a_pass(self, method: LPD | PAR, passes: int) -> None:
        result = decoded(method)
        assert len(result.steps) == passes and len(result.tokens) == 64
        assert sum(step.nfe for step in result.steps) == passes

    def test_a_canvas_that_ends_inside_the_picture_is_filled_to_its_end(self) -> None:
        assert [step.emitted for step in decoded(PAR(2), 4, 4, 6).steps] == [1, 1, 2, 1, 1]
        for length in (1, 3, 5):
            assert len(decoded(LPD("1,2"), 4, 4, length).tokens) == length

    def test_a_pass_reads_the_tokens_of_the_group_before_and_the_queries_of_this_one(self) -> None:
        run = opened(2, 2, 4)
        method = LPD("1,2,1")
        state = method.start(run)
        for _ in range(3):
            run.canvas.fill(method.step(run, state))
        reads = [event for event in run.canvas.history if hasattr(event, "positions")]
        first, second, third = method.cells(Grid(2, 2))
        assert [sorted(read.positions) for read in reads] == [
            sorted([1, *(2 + cell for cell in first)]),
            sorted(2 + cell for cell in [*first, *second]),
            sorted(2 + cell for cell in [*second, *third]),
        ]
        query = run.capabilities.queries[0]
        assert [int((read.tokens == query).sum()) for read in reads] == [1, 2, 1]

    def test_an_output_longer_than_the_picture_is_refused(self) -> None:
        with pytest.raises(UsageError, match="output of 5 tokens and a picture of 4 cells; set max_new_tokens to 4"):
            LPD().start(opened(2, 2, 5))

    def test_a_position_that_is_filled_or_outside_cannot_be_asked_for(self) -> None:
        for position in (1, 6):
            with pytest.raises(ContractError, match=f"asks for position {position}"):
                opened(2, 2, 4).canvas.ask([position])

    def test_regions_that_do_not_divide_the_picture_are_refused(self) -> None:
        with pytest.raises(UsageError, match="3 and the picture has 8 x 8 cells"):
            PAR(3).cells(PICTURE)


class TestReference:
    def test_a_wider_picture_shows_the_bias_of_its_regions(self) -> None:
        assert PAR(2).claim is Claim.APPROXIMATE and distance(PAR(2), QUERY_CASES[-1]) > 0.05

    def test_a_group_has_the_product_of_its_cells_distributions(self) -> None:
        """Of the first group of two, which is drawn from one pass over the prompt."""
        case = Case(3, 2, 35, Sampling(1.0), masked=True, grid=(1, 2))
        law = method_law(LPD(2), case)
        first, second = (sum(p for output, p in law.items() if output[n] == 0) for n in (0, 1))
        assert law[0, 0] == pytest.approx(first * second, abs=1e-12)
        joint = reference_law(case.backbone(), case.prompt, 2, case.sampling, order_of(LPD(2), case))
        assert abs(joint[0, 0] - sum(joint[0, x] for x in (0, 1)) * sum(joint[x, 0] for x in (0, 1))) > 1e-3

    def test_regions_of_one_cell_show_no_distance_and_a_wider_picture_does(self) -> None:
        proof = prove(PAR(4), [QUERY_CASES[0]], mutants=False)
        assert (proof.total_variation or 0) > 0.05 and "grid=4x8" in proof.case


class TestBackbones:
    def test_only_these_methods_run_on_an_order_free_model(self) -> None:
        spec = presets.resolve("embedded-image-8x8-queries")
        reasons = {name: incompatibility(METHODS.get(name)(), spec) for name in ("lpd", "par", "sjd", "zipar")}
        assert reasons["lpd"] is None and reasons["par"] is None
        assert "order-free model" in (reasons["sjd"] or "") and "order-free model" in (reasons["zipar"] or "")
        assert "QUERIES" in (incompatibility(LPD(), presets.resolve("embedded-image-8x8")) or "")

    def test_weights_that_are_not_here_are_said_with_the_command_that_makes_them(self) -> None:
        spec = presets.resolve("embedded-image-8x8-queries")
        assert Requirement.QUERIES in spec.meets()
        if not spec.ready():
            with pytest.raises(WeightsError, match="stride train backbone emoji-image-8x8-queries"):
                presets.load("embedded-image-8x8-queries", "fp32", fetch=False)
