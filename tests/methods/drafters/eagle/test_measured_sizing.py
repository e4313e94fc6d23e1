"""Trees sized by a cost table: the best size by hand, the output distribution, and the stored table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core import costs as core_costs
from stridebench.harness.core.costs import Costs, TreeSizer, costs_file, measured, write_costs
from stridebench.harness.core.costs import TreeSize as Size
from stridebench.harness.core.draft import HostAcceptance
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.proof.cases import CASES, GRID_CASES
from stridebench.harness.proof.distance import distance
from stridebench.harness.run import passes
from stridebench.methods.drafters.eagle.drafter import DynamicTrees
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from tests.support.feature_toys import folder_for, run_on, tiny, with_oracle

FLAT = Costs(((1, 1.0), (9, 1.0)), ((1, 0.01), (9, 0.01)))
STEEP = Costs(((1, 1.0), (9, 9.0)), ((1, 0.01), (9, 0.01)))


def sizer_of(table: Costs, accepted: dict[tuple[int, int], float], cycles: int = 9) -> TreeSizer:
    """Ten trees of two levels and four nodes."""
    sizer = TreeSizer(Size(2, 4), 2, table, cycles)
    sizer.proposed += 10
    for where, count in accepted.items():
        sizer.accepted[where] = count
    return sizer


class TestChoice:
    def test_times_are_interpolated_between_sizes_and_extrapolated_beyond(self) -> None:
        measured_ms = ((1, 2.0), (5, 4.0), (9, 10.0))
        assert [Costs.at(rows, measured_ms) for rows in (1, 3, 5, 7, 9, 11)] == [2.0, 3.0, 4.0, 7.0, 10.0, 13.0]

    @pytest.mark.parametrize(
        ("table", "accepted", "size"),
        [
            (FLAT, {(0, 0): 9, (1, 2): 5}, Size(2, 3)),
            (FLAT, {(0, 0): 9}, Size(1, 1)),
            (STEEP, {(0, 0): 9, (1, 2): 5}, Size(0, 0)),  # 1.9 tokens in 2.01 ms are less than one in 1 ms
            (FLAT, {}, Size(0, 0)),
        ],
    )
    def test_the_best_size_by_hand(self, table: Costs, accepted: dict[tuple[int, int], float], size: Size) -> None:
        assert sizer_of(table, accepted).choose() == size

    @pytest.mark.parametrize("cycles", [0, core_costs.FIRST - 1, core_costs.AGAIN])
    def test_the_largest_tree_is_tried_first_and_again_at_intervals(self, cycles: int) -> None:
        assert sizer_of(STEEP, {}, cycles).choose() == Size(2, 4)

    def test_a_cycle_counts_the_ranks_that_its_tree_proposed(self) -> None:
        sizer = sizer_of(FLAT, {})
        sizer.chosen = Size(1, 3)
        sizer.follow(HostAcceptance(path=(0,), token=0, expected=0.0, extra_ids=(2, 0, 1, 0, 0, 0)))
        assert (sizer.proposed - 10).tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
        assert sizer.accepted.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
        assert sizer.cycles == 10


class TestDecodes:
    def test_a_drafter_that_is_the_target_keeps_its_chain(self) -> None:
        steps = with_oracle(Eagle2(depth=3, width=1, nodes=4, sizing="measured"), Sampling(0.0), 100).steps
        assert [(step.drafted, step.levels, step.accepted) for step in steps[:-1]] == [(4, 4, 4)] * 19

    def test_a_drafter_that_is_never_right_drafts_at_intervals_only(self) -> None:
        run = run_on(Tabular("tabular", {"vocabulary": 300, "context": 200}), Sampling(0.0), 60, (0, 1, 2))
        steps = decode(Eagle2(depth=1, width=2, nodes=4, sizing="measured"), run).steps
        drafted = [index for index, step in enumerate(steps) if step.drafted]
        assert sum(step.accepted for step in steps) == 0
        assert drafted == [*range(core_costs.FIRST), 16, 32, 48]

    def test_accepted_nodes_are_counted_at_their_ranks(self) -> None:
        """A tree of one level and one node is the likeliest token."""
        run = run_on(Tabular("tabular", {"vocabulary": 3}), Sampling(1.0), 12, (0, 1, 2))
        method = Eagle2(depth=0, width=1, nodes=1, sizing="measured")
        states: list[DynamicTrees] = []

        class Watched(Eagle2):
            def start(self, run: Run) -> DynamicTrees:
                states.append(super().start(run))
                return states[0]

        steps = decode(Watched(**vars(method)), run).steps
        sizer = states[0].sizer
        assert sizer.accepted.sum() == sum(step.accepted for step in steps)
        assert sizer.proposed.sum() == sum(step.drafted for step in steps)

    @pytest.mark.usefixtures("unchecked")
    def test_the_output_distribution_is_the_targets_while_sizes_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One cycle of the largest tree, then the choice: one enumeration has several sizes."""
        monkeypatch.setattr(core_costs, "FIRST", 1)
        chosen, choose = set(), TreeSizer.choose

        def watched(self: TreeSizer) -> Size:
            chosen.add(choose(self))
            return self.chosen

        monkeypatch.setattr(TreeSizer, "choose", watched)
        method = Eagle2(depth=1, width=2, nodes=4, sizing="measured")
        for case in (CASES[1], replace(CASES[0], length=5), GRID_CASES[0]):
            assert distance(method, case) < 1e-12, str(case)
        assert len(chosen) >= 3


class TestAuto:
    def test_a_size_that_is_named_is_kept_and_another_is_chosen_by_cost(self) -> None:
        assert all(one.sizes_by_cost for one in (Eagle2(), Eagle2(width=2), Eagle2(nodes=4, sizing="measured")))
        for named in (Eagle2(depth=3), Eagle3(nodes=12), Eagle2(sizing="given")):
            assert not named.sizes_by_cost and not named.probes()
        assert Eagle2().largest == Eagle2(depth=3, nodes=12).largest == Size(4, 12)

    def test_without_a_name_trees_shrink_where_drafts_are_never_right(self) -> None:
        model = Tabular("tabular", {"vocabulary": 300, "context": 200})
        steps = decode(Eagle2(), run_on(model, Sampling(0.0), 40, (0, 1, 2))).steps
        assert [bool(step.drafted) for step in steps[:10]] == [True] * core_costs.FIRST + [False] * 2

    def test_a_run_that_times_nothing_takes_the_largest_tree(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        model = tiny()
        steps = decode(Eagle2(folder_for(model, tmp_path / "eagle")), run_on(model, Sampling(0.0), 30)).steps
        assert {step.drafted for step in steps[:-4]} == {12}


class TestTable:
    def test_a_missing_table_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        model = tiny()
        method = Eagle2(features=folder_for(model, tmp_path / "eagle"), sizing="measured")
        with pytest.raises(UsageError, match=r"passes of tiny .*measures them before its first decode"):
            decode(method, run_on(model, Sampling(0.0), 8))

    def test_a_table_is_measured_stored_and_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        model = tiny("fp32")
        component = folder_for(model, tmp_path / "eagle")
        method = Eagle2(features=component, sizing="measured")
        draft = passes.drafter_costs(model, model.variant, method, Prompt("", tokens=(5, 9, 22)))[component]
        assert [rows for rows, _ in draft] == [1, 4]
        assert min(ms for _, ms in draft) > 0
        table = Costs(((1, 1.0), (33, 1.5)), draft)
        write_costs(costs_file(model, component), table)
        assert measured(model, component) == table
        steps = decode(Eagle2(features=component, sizing="measured"), run_on(model, Sampling(0.0), 20)).steps
        assert steps[0].drafted == 12
        costs_file(model, component).write_text('{"target": []}')
        core_costs._read.cache_clear()
        with pytest.raises(UsageError, match="is not a table of costs"):
            measured(model, component)
