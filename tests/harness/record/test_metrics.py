"""Every metric's convention, on a trace countable by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import pytest

from stridebench.harness.errors import ContractError
from stridebench.harness.record.columns import STEP_FIELDS, Record, Sample, Step, check
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import (
    METRICS,
    acceptance_by_depth,
    refuting,
    refuting_in,
    totals,
    value,
)
from tests.support import fake_store


def step(drafted: int, accepted: int, **other: Any) -> Step:
    counted = {
        "expected": accepted + 0.25 if drafted else 0.0,
        "wall_ns": 2_000_000,
        "levels": (drafted + 1) // 2,
        "levels_built": 5 if drafted else 0,
        "loss": 0.125 * accepted,
    }
    return fake_store.step(accepted, drafted, **counted | other)


A = (step(4, 4), step(4, 2, reused=1), step(3, 0, reused=2), step(0, 0, nfe=2))
B = (step(4, 1), step(4, 3, overshoot=2, wall_ns=5_000_000))
WARMUP = (step(4, 4, wall_ns=9_000_000_000), step(4, 4, wall_ns=9_000_000_000))
FAILED = (step(2, 1),)


def output(steps: tuple[Step, ...]) -> tuple[int, ...]:
    length = sum(s.emitted - s.overshoot for s in steps)
    return tuple(range(length))


def sample(prompt: str, steps: tuple[Step, ...], **other: Any) -> Sample:
    tokens = output(steps)
    fields = {"repetition": 0, "warmup": False, "status": "ok", "prefill_ns": 4_000_000, "agreement": 0.5}
    fields |= {"completion": len(tokens) - 1, "cpu_uj": 7_000_000, "gpu_uj": 14_000_000}
    fields |= {"peak_bytes": 500_000_000 if prompt == "a" else 300_000_000}
    return Sample(**{"prompt": prompt, "tokens": tokens, "logprobs": (-0.5,) * len(tokens), **fields, **other})


RECORDS = (
    Record(sample("a", WARMUP, warmup=True), WARMUP),
    Record(sample("a", A), A),
    Record(sample("b", B, agreement=None), B),
    Record(sample("c", FAILED, status="failed", error="boom", tokens=(), logprobs=()), FAILED),
)


def frames(records: tuple[Record, ...] = RECORDS) -> tuple[pd.DataFrame, pd.DataFrame]:
    return fake_store.samples_of(records), fake_store.steps_of(records)


# a: 4 steps, 5 passes, 5 + 3 + 1 + 1 = 10 tokens; b: 2 steps, 2 passes, 2 + 4 - 2 = 4 tokens.
# drafted 11 + 8 = 19; tested 4 + 3 + 1 + 0 and 2 + 4: 14; accepted 6 + 4 = 10; wall 4 x 2 + 2 + 5 = 15 ms.
# expected: 4.25 + 2.25 + 0.25 + 0 and 1.25 + 3.25: 11.25; reused 3; drafter passes as drafted.
BY_HAND = {
    "scr": 14 / 7,
    "completion_per_pass": 12 / 7,
    "tau": 14 / 6,
    "tau_minus_1": 14 / 6 - 1,
    "acceptance": 10 / 14,
    "acceptance_per_node": 10 / 19,
    "expected_per_node": 11.25 / 19,
    "nfe_per_output": 7 / 14,
    "reused": 3 / 6,
    "unique_drafted": 16 / 6,
    "mean_tree_depth": 10 / 6,
    "mean_levels_built": 25 / 6,
    "draft_nfe": 19 / 6,
    "loss": 100 * 0.125 * 10 / 14,
    "logprob": -0.5,
    "step_ms": 15 / 6,
    "start_ms": 0.0,
    "start_nfe": 0.0,
    "ms_per_token": 15 / 14,
    "tokens_per_second": 14 / 0.015,
    "throughput": 14 / 0.015,
    "peak_mb": 400.0,
    "cpu_joules_per_token": 14 / 14,
    "gpu_joules_per_token": 28 / 14,
}


class TestStart:
    """What a method does before its first step counts: b made 14 passes there and took 30 ms."""

    RECORDS = (
        RECORDS[1],
        Record(sample("b", B, start_nfe=14, start_draft_nfe=7, start_ns=30_000_000), B),
    )

    @pytest.mark.parametrize(
        ("name", "by_hand"),
        [
            ("scr", 14 / 21),
            ("nfe_per_output", 21 / 14),
            ("draft_nfe", 26 / 6),
            ("start_nfe", 14 / 2),
            ("start_ms", 30 / 2),
            ("step_ms", 15 / 6),
            ("ms_per_token", 45 / 14),
            ("tokens_per_second", 14 / 0.045),
            ("throughput", 14 / 0.045),
            ("tau", 14 / 6),
        ],
    )
    def test_by_hand(self, name: str, by_hand: float) -> None:
        assert value(METRICS[name], totals(*frames(self.RECORDS))) == pytest.approx(by_hand, rel=1e-12)


def test_the_time_of_a_pass_is_shared_by_the_decodes_that_it_serves() -> None:
    """Each pass of b, of 2 and 5 ms, serves another decode too; a takes 8 ms alone."""
    shared = Record(RECORDS[2].sample, tuple(replace(one, served=2) for one in B))
    sums = totals(*frames((RECORDS[1], shared)))
    assert value(METRICS["throughput"], sums) == pytest.approx(14 / 0.0115, rel=1e-12)
    assert value(METRICS["tokens_per_second"], sums) == pytest.approx(14 / 0.015, rel=1e-12)


def test_a_step_of_several_rounds_is_no_acceptance_length() -> None:
    """A band of MuLo-SD draws 4 tokens in 3 passes and accepts none; in a warm-up it changes nothing."""
    band = replace(A[0], nfe=3, emitted=4, accepted=0, tested=0, expected=0.0)
    for warmup, tau in ((False, None), (True, BY_HAND["tau"])):
        tokens = RECORDS[1].sample.tokens
        one = Record(replace(RECORDS[1].sample, prompt="z", warmup=warmup, tokens=tokens[:4]), (band,))
        sums = totals(*frames((*RECORDS, one)))
        assert value(METRICS["tau"], sums) == (pytest.approx(tau) if tau else None)
        assert value(METRICS["scr"], sums) is not None


class TestMetrics:
    def test_every_metric_has_a_value_counted_by_hand(self) -> None:
        assert set(METRICS) == set(BY_HAND)

    @pytest.mark.parametrize("name", sorted(METRICS))
    def test_by_hand(self, name: str) -> None:
        assert value(METRICS[name], totals(*frames())) == pytest.approx(BY_HAND[name], rel=1e-12)

    @pytest.mark.parametrize("name", sorted(METRICS))
    def test_a_metric_is_the_ratio_of_two_columns(self, name: str) -> None:
        metric, frame = METRICS[name], totals(*frames())
        ratio = frame[metric.numerator].sum() / frame[metric.denominator].sum() - metric.minus
        assert value(metric, frame) == pytest.approx(ratio)
        assert metric.name == name

    @pytest.mark.parametrize(
        "metric", ["acceptance", "acceptance_per_node", "expected_per_node"], ids=lambda name: name
    )
    def test_without_drafts_there_is_no_acceptance(self, metric: str) -> None:
        plain = (step(0, 0), step(0, 0))
        frame = totals(*frames((Record(sample("a", plain), plain),)))
        assert value(METRICS[metric], frame) is None
        assert value(METRICS["scr"], frame) == 1

    def test_warm_up_and_failures_are_not_counted(self) -> None:
        for status in ("failed", "stopped"):
            records = [*RECORDS[:3], replace(RECORDS[3], sample=replace(RECORDS[3].sample, status=status))]
            assert totals(*frames(tuple(records))).index.tolist() == [("a", 0), ("b", 0)]

    def test_columns_of_totals(self) -> None:
        row: Any = totals(*frames()).loc[("a", 0)]
        assert row["emitted"] - row["overshoot"] == row["output"] == 10
        assert (row["steps"], row["nfe"], row["wall_ms"], row["wall_s"]) == (4, 5, 8.0, 0.008)
        assert (row["logprob"], row["agreement"], row["prefill_ms"]) == (-5.0, 0.5, 4.0)

    def test_each_repetition_is_its_own_row(self) -> None:
        twice = (*RECORDS, Record(sample("a", B, repetition=1), B))
        frame = totals(*frames(twice))
        assert frame.loc[("a", 1), "output"] == 4
        assert frame.loc[("a", 0), "output"] == 10

    def test_a_store_without_a_counted_sample_has_no_totals(self) -> None:
        frame = totals(*frames(RECORDS[:1]))
        assert len(frame) == 0
        assert value(METRICS["scr"], frame) is None


class TestDepth:
    def test_by_hand(self) -> None:
        _, steps = frames(RECORDS[1:3])
        rows = acceptance_by_depth(steps)
        assert [(row.depth, row.marginal, row.conditional) for row in rows] == [
            (1, 4 / 6, 4 / 5),  # five steps drafted a node at depth 1
            (2, 3 / 6, 3 / 4),
            (3, 2 / 6, 2 / 3),
            (4, 1 / 6, 1 / 2),
        ]

    def test_a_short_draft_is_not_a_rejection(self) -> None:
        """Depth 2 was reached twice and drafted once: acceptance there is 1 of 1 and not 1 of 2."""
        trace = (step(2, 2), step(1, 1))
        _, steps = frames((Record(sample("a", trace), trace),))
        assert [row.conditional for row in acceptance_by_depth(steps)] == [1.0, 1.0]
        assert [row.marginal for row in acceptance_by_depth(steps)] == [1.0, 0.5]

    def test_no_accepted_draft_and_no_step_give_no_depths(self) -> None:
        _, steps = frames(RECORDS[1:3])
        assert acceptance_by_depth(steps[steps["accepted"] == 0]) == []
        assert acceptance_by_depth(steps[steps["accepted"] > 99]) == []


class TestIdentities:
    @pytest.mark.parametrize(
        "trace",
        [
            A,
            B,
            (step(1, 1, tested=1, emitted=1),),  # its one draft was computed by no pass
            (step(3, 3, tested=3, emitted=3),),
            (step(0, 0, tested=0, emitted=5),),  # five positions of a canvas
        ],
    )
    def test_hold_also_without_a_token_of_the_target(self, trace: tuple[Step, ...]) -> None:
        check(trace, len(output(trace)))

    def test_emitted_less_overshoot_is_the_output(self) -> None:
        with pytest.raises(ContractError, match="emitted 6 - overshoot 2 is not the output's 5 tokens"):
            check(B, 5)

    @pytest.mark.parametrize(
        "broken",
        [
            step(2, 3),
            step(2, 1, tested=0),
            step(2, 1, tested=3),
            step(2, 1, emitted=1),  # no bonus token
            step(2, 1, emitted=3),
        ],
    )
    def test_a_broken_step_is_named(self, broken: Step) -> None:
        with pytest.raises(ContractError, match="step 1: accepted"):
            check((step(1, 1), broken), 2 + broken.emitted)


def test_optional_fields_have_neutral_defaults() -> None:
    required = {name: 1 for name in STEP_FIELDS[: STEP_FIELDS.index("forced_drafted")]}
    plain = asdict(Step(**required))
    assert {name: plain[name] for name in STEP_FIELDS if name not in required} == {
        **dict.fromkeys(("forced_drafted", "forced_tested", "forced_accepted", "resampled", "levels"), 0),
        "served": 1,
        **dict.fromkeys(("wait_ns", "switches", "gpu_mhz", "foreign", "stopped_ns"), 0),
        "ranks": (),
        "energies": (),
        "levels_built": None,
        "loss": None,
    }
    few = Sample("a", 0, False, "ok")
    assert (few.prompt_tokens, few.prefill_ns, few.open_ns) == (0, 0, 0)
    assert Record(few, (Step(**required),)).plain()["steps"] == [{**plain, "ranks": (), "energies": ()}]


def test_a_loss_is_missing_where_one_step_declares_nothing() -> None:
    samples, steps = frames(RECORDS[1:3])
    assert totals(samples, steps.assign(loss=None))["loss_percent"].isna().all()
    assert totals(samples, steps.drop(columns=["loss"]))["loss_percent"].isna().all()
    steps["loss"] = steps["loss"].where(steps["prompt"] == "b")
    assert totals(samples, steps)["loss_percent"].isna().tolist() == [True, False]


def test_levels_built_are_missing_where_one_step_did_not_store_them() -> None:
    samples, steps = frames(RECORDS[1:3])
    steps["levels_built"] = steps["levels_built"].where(steps["prompt"] == "b")
    frame = totals(samples, steps)
    assert frame["levels_built"].isna().tolist() == [True, False]
    assert value(METRICS["mean_levels_built"], frame) == 10 / 2
    older = totals(samples, steps.drop(columns=["levels_built"]))
    assert value(METRICS["mean_levels_built"], older) is None


def test_the_bound_grows_with_the_number_of_samplers() -> None:
    assert (refuting(0), refuting(1), refuting(5)) == (1000.0, 1000.0, 5000.0)


def test_a_finished_run_has_the_bound_that_it_stored() -> None:
    claiming = CellMeta(claim="SAME_LAW", audit_log_e=0.0)
    other = CellMeta(claim="APPROXIMATE", audit_log_e=0.0, audit_threshold=9000.0)
    greedy = CellMeta(claim="SAME_LAW")
    assert refuting_in([claiming, claiming, other, greedy]) == 2000.0
    assert refuting_in([claiming.merged(CellMeta(audit_threshold=3000.0)), claiming]) == 3000.0
    assert refuting_in([]) == 1000.0
