"""The summary's figures, on cells countable by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stridebench.harness.record.columns import STEP_FIELDS, Record, Step
from stridebench.harness.record.stats import FloatArray, Interval, median_ratio
from stridebench.harness.record.store import Store
from stridebench.reports import tables
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.flags import blind_flags, measured_flags, mismatch_flags, unlike_itself
from stridebench.reports.summary import by_category, summarise
from tests.support.fake_store import GREEDY, FakeStore, Sim, empty, meta, record, simulate, step, suite, tiny


def test_every_value_equals_the_count_by_hand() -> None:
    row = summarise(tiny()).set_index("cell").loc["m"]
    assert row["scr"] == 2.0 and row["tau"] == 2.0  # 10 tokens / 5
    assert row["acceptance"] == 0.5  # 1 accepted of 2 tested
    assert row["acceptance_per_node"] == 0.5
    assert row["nfe"] == 20
    assert row["drafter_c"] == pytest.approx(0.6 / 7.5)  # two passes in 1.2 ms; the baseline's target takes 7.5
    assert row["ms_per_token"] == pytest.approx(6.0)  # 60 ms / 10; the warm-up of 900 ms is not in it
    assert (row["step_p50_ms"], row["step_p95_ms"]) == (12.0, 12.0)
    shares = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "host")]
    assert shares == pytest.approx([1.2, 9.0, 1.2, 0.6]) and sum(shares) == pytest.approx(row["step_p50_ms"])
    assert row["speedup"] == pytest.approx(10 / 6) == row["predicted"]  # 2 x 10 ms / 12 ms
    assert (row["n_ok"], row["n_failed"], row["n_skipped"]) == (4, 0, 1)
    assert row["logprob"] == -1.0 and row["logprob_std"] == 0.0 and row["agreement"] == 1.0
    assert row["flags"] == "" and row["valid"]


def test_times_of_steps_leave_out_warm_ups_and_samples_that_failed() -> None:
    """Twenty-one steps of 1 to 21 ms: the median is the eleventh, and 95 in 100 lie below the twentieth."""
    counted = [record("p0", [step(ms=ms) for ms in range(1, 8)]), record("p1", [step(ms=ms) for ms in range(8, 22)])]
    failed = record("p2", [step(ms=900.0)] * 30, status="failed", error="boom")
    store = empty().add(meta("m"), [record("p0", [step(ms=800.0)] * 30, warmup=True), *counted, failed])
    row = summarise(store).set_index("cell").loc["m"]
    assert (row["step_p50_ms"], row["step_p95_ms"]) == pytest.approx((11.0, 20.0))
    shares = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "host")]
    assert shares == pytest.approx([1.1, 8.25, 1.1, 0.55]) and row["prefill_ms"] == 5.0
    assert (row["n_ok"], row["n_failed"], row["n_run"], row["valid"]) == (2, 1, 3, False)


def test_two_passes_a_step_are_timed_once_in_the_prediction() -> None:
    """A step of two passes is timed once, so the prediction uses tokens a step and not a pass."""
    store = tiny()
    store.add(meta("m"), [record(f"p{i}", [step(1, 2, ms=16.0, nfe=2)] * 5) for i in range(4)])
    row = summarise(store).set_index("cell").loc["m"]
    assert (row["scr"], row["tau"]) == (1.0, 2.0)
    assert row["predicted"] == pytest.approx(20 / 16) == row["speedup"] and row["flags"] == ""


def test_the_prediction_counts_the_start_of_the_baseline_and_leaves_out_prompts_that_failed() -> None:
    """The baseline takes 10 ms a step and 10 ms before them, and four times that if the method fails on the prompt."""
    prompts = [f"p{i}" for i in range(4)]
    baseline = [record(p, [step(ms=40.0 if p == "p0" else 10.0)] * 10, start_ns=10_000_000) for p in prompts]
    method = [record(p, [step(1, 2, ms=12.0)] * 5) for p in prompts[1:]]
    store = empty().add(meta("ar", role="baseline"), baseline)
    store.add(meta("m"), [record("p0", [], status="failed", error="boom"), *method])
    row = summarise(store).set_index("cell").loc["m"]
    assert row["predicted"] == pytest.approx(2 * 11 / 12) == row["speedup"]


def test_without_a_shared_prompt_or_without_timing_nothing_is_predicted() -> None:
    store = empty().add(meta("ar", role="baseline"), [record(f"p{i}", [step()] * 10) for i in range(4)])
    store.add(meta("m"), [record(f"q{i}", [step(1, 2)] * 5) for i in range(4)])
    row = summarise(store).set_index("cell").loc["m"]
    assert "predicted" not in row or np.isnan(row["predicted"])
    untimed = tiny()
    untimed.sealed_cells["m"].facts["timed"] = False
    row = summarise(untimed).set_index("cell").loc["m"]
    shown = {name for name, figure in row.items() if not pd.isna(figure)}
    assert {"scr", "tau", "acceptance"} <= shown and not {"speedup", "predicted", "step_p50_ms", "ms_per_token"} & shown
    assert row["flags"] == "not timed (timing: off)"


def test_skipped_and_unfinished_cells_have_a_row_with_the_reason() -> None:
    store = tiny().skip(meta("tree", label="tree"), "needs TREE_MASK")
    store.body["cells"]["later"] = {"label": "later"}
    rows = summarise(store).set_index("cell")
    assert rows.loc["tree", "status"] == "skipped" and rows.loc["tree", "reason"] == "needs TREE_MASK"
    assert rows.loc["later", "status"] == "unfinished"
    page = tables.markdown(summarise(store))
    assert "skipped: tree: needs TREE_MASK" in page and "unfinished: later" in page


def flags(store: FakeStore) -> str:
    return str(summarise(store).set_index("cell").loc["m", "flags"])


@pytest.mark.parametrize(
    ("facts", "flag"),
    [
        ({}, ""),
        ({"adapter_on": "int4"}, "full weights and is added to int4 ones"),
        ({"baseline": "elsewhere"}, "no baseline in this run"),
        ({"verdict": {"word": "broken", "note": "audit: e = 1e9; and more"}}, "audit: e = 1e9, and more"),
    ],
)
def test_facts_of_a_cell_are_flagged(facts: dict[str, Any], flag: str) -> None:
    text = flags(tiny(**facts))
    assert flag in text and bool(text) == bool(flag)


ODD_CLOCK = [step(1, 2, ms=400.0), step(1, 2, ms=12.0)]
"""One prompt is slow and the others are not, so that the median and the mean disagree."""
WAITED = "disturbed timing: threads waited for a core in"


def outputs(*steps: Step) -> list[Record]:
    """Ten tokens of each of twelve prompts; the first prompts have a step each, and the others the last one."""
    each = [steps[min(i, len(steps) - 1)] for i in range(12)]
    return [record(f"p{i}", [one] * (10 // one.emitted)) for i, one in enumerate(each)]


@pytest.mark.parametrize(
    ("baseline", "method", "flag"),
    [
        ([step(ms=80.0, rows=64)], [step(ms=20.0, rows=8)], ""),  # a masked model that reads its block alone
        ([step()], ODD_CLOCK, "mismatch: predicted"),
        ([step(ms=400.0), step()], [step(1, 2)], "mismatch: predicted"),
        ([step()], [replace(one, wait_ns=5_000_000) for one in ODD_CLOCK], f"{WAITED} 92% of the steps"),
        ([step(wait_ns=5_000_000)], [step(1, 2, ms=12.0)], f"{WAITED} 100% of the baseline's steps"),
    ],
    ids=["fewer rows", "mismatch", "of the baseline", "disturbed", "disturbed baseline"],
)
def test_seconds_that_cannot_be_right_are_flagged_once(baseline: list[Step], method: list[Step], flag: str) -> None:
    store = empty().add(meta("ar", role="baseline"), outputs(*baseline)).add(meta("m"), outputs(*method))
    text = flags(store)
    assert text.startswith(flag) and bool(text) == bool(flag) and ";" not in text


def test_a_speed_up_above_the_tokens_of_a_step_is_flagged() -> None:
    store = empty().add(meta("ar", role="baseline"), outputs(step(ms=80.0)))
    text = flags(store.add(meta("m"), outputs(step(1, 2, ms=20.0))))
    assert text == "disturbed timing: a speed-up of 8.00x at 2.00 tokens a step"


def test_more_than_a_tenth_failed_makes_a_cell_invalid() -> None:
    good = [record(f"p{i}", [step(1, 2)] * 5) for i in range(9)]
    bad = [record(f"q{i}", [], status="failed", error="boom") for i in range(2)]
    rows = summarise(tiny().add(meta("m"), good + bad[:1])).set_index("cell")
    assert (
        rows.loc["m", "valid"] and rows.loc["m", "n_failed"] == 1 and rows.loc["m", "flags"] == "1 of 10 failed: boom"
    )
    store = tiny().add(meta("m"), good + bad)
    assert not summarise(store).set_index("cell").loc["m", "valid"] and flags(store) == "invalid: 2 of 11 failed: boom"
    other = record("q2", [], status="failed", error="no end; give more tokens")
    assert flags(tiny().add(meta("m"), [*good, *bad, other])) == "invalid: 3 of 12 failed: 2 of them: boom"
    alone = flags(tiny().add(meta("m"), [*good, other]))
    assert alone == "1 of 10 failed: no end, give more tokens"


@pytest.mark.parametrize(("ms", "flag"), [(9.7, ""), (8.5, "0.85x"), (44.0, "4.40x")])
def test_autoregressive_decoding_unlike_itself_is_flagged_on_every_row(ms: float, flag: str) -> None:
    """Both sets decode one token a step, so only a disturbed clock makes one of them faster."""
    store = empty()
    store.add(meta("ar", role="baseline"), [record(f"p{i}", [step(ms=ms)] * 10) for i in range(12)])
    store.add(meta("ar2", role="floor", floor="ar2"), [record(f"p{i}", [step(ms=10.0)] * 10) for i in range(12)])
    store.add(meta("m", floor="ar2"), [record(f"p{i}", [step(1, 2, ms=ms)] * 5) for i in range(12)])
    expected = f"disturbed timing: autoregressive against itself is {flag}" if flag else ""
    assert (expected in flags(store)) and ("disturbed" in flags(store)) == bool(flag)


def load(rng: np.random.Generator, decodes: int, stays: float, slower: float) -> FloatArray:
    """Slow-down of decodes one after another: log-normal, and correlated in time by ``stays`` from one to the next."""
    steps = rng.normal(size=decodes)
    for place in range(1, decodes):
        steps[place] = stays * steps[place - 1] + np.sqrt(1 - stays**2) * steps[place]
    return np.exp(np.log(slower) * steps)


@pytest.mark.slow
@pytest.mark.parametrize(("stays", "slower"), [(0.0, 1.02), (0.98, 2.0)])
def test_intervals_hold_their_coverage_under_load_that_is_correlated_in_time(stays: float, slower: float) -> None:
    """Cells take turns on each prompt, so a ratio is over neighbours in time; 100 runs of 24 prompts, half as long."""
    prompts = pd.MultiIndex.from_product([range(24), [0]], names=["prompt", "repetition"])
    missed = excluded = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, round(100 * stays)])
        seconds = (10 * load(rng, 72, stays, slower)).reshape(24, 3)
        for prompt in range(24):  # as `Schedule` lets the cells take turns to begin
            seconds[prompt] = np.roll(seconds[prompt], prompt)
        baseline, method, floor = (pd.Series(column, prompts) for column in seconds.T)
        speedup, itself = median_ratio(baseline, method / 2), median_ratio(baseline, floor)
        assert speedup is not None and speedup.low is not None and speedup.high is not None
        assert itself is not None and itself.low is not None and itself.high is not None
        missed += not speedup.low <= 2 <= speedup.high and not unlike_itself(itself)
        excluded += not itself.low <= 1 <= itself.high
    assert missed <= 10 and excluded <= 10


def test_a_cell_without_a_sample_is_flagged() -> None:
    store = tiny().add(meta("m", expected=2), [record("p0", [], status="failed", error="boom")])
    rows = summarise(store).set_index("cell")
    assert "no sample" in rows.loc["m", "flags"] and rows.loc["m", "n_ok"] == 0


def test_output_without_logprobs_has_none() -> None:
    records = [record(f"p{i}", [step(1, 2)] * 5, logprobs=()) for i in range(4)]
    rows = summarise(tiny().add(meta("m"), records)).set_index("cell")
    assert np.isnan(rows.loc["m", "logprob"])


def test_sampled_cells_are_tested_against_the_baseline(frame: pd.DataFrame) -> None:
    rows = frame.set_index("cell")
    assert rows.loc["t1-spec", "tv_p"] > 0.01 and rows.loc["t1-spec", "tv_floor"] > 0
    assert np.isnan(rows.loc["t0-spec", "tv"]) and np.isnan(rows.loc["t1-ar", "tv"])
    assert rows.loc["t1-bad", "ks_p"] < 0.05 < rows.loc["t1-spec", "ks_p"]
    assert np.isnan(rows.loc["t1-spec", "agreement"])  # agreement is of greedy outputs alone


AUDITED = {"audit_log_e": 1.5, "audit_tokens": 40, "audit_visible_tv": 0.04, "audit_best": "hotter, p^0.9"}


def test_a_cell_with_an_e_value_needs_no_two_sample_test() -> None:
    store = sampled(dict.fromkeys(("ar", "ar2", "m"), [(1, 2, 3)] * 6), dict.fromkeys(("ar", "ar2", "m"), -1.0))
    assert "tv_p" in summarise(store)
    store.sealed_cells["m"].facts.update(AUDITED)
    frame = summarise(store).set_index("cell")
    assert "tv_p" not in frame and "ks_p" not in frame
    assert {name: frame.loc["m", name] for name in AUDITED} == AUDITED


def sampled(outputs: dict[str, list[tuple[int, ...]]], logprobs: dict[str, float]) -> FakeStore:
    """Cells ar, ar2 (other seeds) and m at T = 1 with these outputs and log-probabilities of a token."""
    roles = {"ar": "baseline", "ar2": "floor", "m": "method"}
    store = empty()
    for cell, role in roles.items():
        records = [
            record(f"p{i:02d}", [step()] * len(tokens), tokens=tokens, logprobs=(logprobs[cell] - i,) * len(tokens))
            for i, tokens in enumerate(outputs[cell])
        ]
        store.add(meta(cell, role=role, floor="ar2", sampling={**GREEDY, "temperature": 1.0}), records)
    return store


def test_sampled_cells_are_compared_with_other_seeds_as_their_floor_is() -> None:
    """The method repeats the baseline's outputs, as shared seeds make it: that is no closer than the floor."""
    ar, other = [(i % 3, 1) for i in range(12)], [(2, i % 2) for i in range(12)]
    store = sampled({"ar": ar, "ar2": other, "m": ar}, {"ar": -1.0, "ar2": -1.5, "m": -1.0})
    row = summarise(store).set_index("cell").loc["m"]
    assert row["tv"] == row["tv_floor"] > 0
    assert row["ks"] > 0


def test_a_significant_two_sample_test_is_flagged() -> None:
    tokens = [(i % 3, 1) for i in range(12)]
    outputs = dict.fromkeys(("ar", "ar2", "m"), tokens)
    assert flags(sampled(outputs, {"ar": -1.0, "ar2": -1.0, "m": -1.0})) == ""
    shifted = flags(sampled(outputs, {"ar": -1.0, "ar2": -1.0, "m": -99.0}))
    assert shifted.startswith("log-probabilities are distributed unlike autoregressive ones: two-sample test, p = 0.0")
    others = flags(sampled({**outputs, "m": [(5, 6)] * 12}, {"ar": -1.0, "ar2": -1.0, "m": -1.0}))
    assert others.startswith("tokens are distributed unlike autoregressive ones: two-sample test, p = 0.0")


def test_full_agreement_has_an_interval_with_a_width(frame: pd.DataFrame) -> None:
    row = frame.set_index("cell").loc["t0-spec"]
    assert (row["agreement"], row["agreement_high"]) == (1.0, 1.0)
    assert row["agreement_low"] == pytest.approx(0.05 ** (1 / 6))


def test_a_score_of_all_outputs_has_its_bounds_and_one_that_could_not_be_computed_is_left_out() -> None:
    scores = {
        "fid": {"value": 31.5, "n": 4, "low": 20.0, "high": 40.0},
        "clip": {"value": None, "n": 4, "reason": "two outputs are needed"},
    }
    row = summarise(empty().add(meta("m", set_scores=scores), [record("p0", [step()] * 4)])).iloc[0]
    assert [row[f"set.fid{end}"] for end in ("", "_low", "_high", "_n")] == [31.5, 20.0, 40.0, 4]
    assert not [name for name in row.index if name.startswith("set.clip")]


def test_intervals_resample_the_clusters_that_prompts_name() -> None:
    """Eight templates with three prompts each that decode alike: the intervals are those of one prompt a template."""

    def store(copies: int, cluster: str) -> FakeStore:
        records = [
            record(f"p{i}.{k}", [step(i % 3, 2)] * 10, cluster=cluster.format(i), agreement=0.5 + i / 20)
            for i in range(8)
            for k in range(copies)
        ]
        baseline = [
            record(f"p{i}.{k}", [step()] * 30, cluster=cluster.format(i)) for i in range(8) for k in range(copies)
        ]
        return empty().add(meta("ar", role="baseline"), baseline).add(meta("m"), records)

    alone, together, unnamed = (
        summarise(store(copies, cluster)).set_index("cell").loc["m"]
        for copies, cluster in ((1, ""), (3, "t{}"), (3, ""))
    )
    for name in ("scr", "tau", "acceptance", "speedup", "agreement"):
        bounds = [f"{name}_low", f"{name}_high"]
        assert together[bounds].tolist() == pytest.approx(alone[bounds].tolist()), name
        assert together[f"{name}_n"] == 8 and unnamed[f"{name}_n"] == 24
        assert unnamed[bounds[1]] - unnamed[bounds[0]] < 0.8 * (alone[bounds[1]] - alone[bounds[0]])
    assert "n = 24 in 8 clusters" in together["flags"] and "clusters" not in unnamed["flags"] + alone["flags"]


def test_rows_by_category_are_reported() -> None:
    store = empty()
    store.add(meta("ar", role="baseline"), simulate(Sim(gamma=0), 8)).add(meta("m"), simulate(Sim(), 8))
    store.add(meta("alone", baseline="elsewhere"), simulate(Sim(), 8))
    rows = by_category(store).set_index(["cell", "category"])
    assert rows.index.tolist() == [(cell, kind) for cell in ("ar", "m", "alone") for kind in ("code", "prose")]
    assert set(rows["n_ok"]) == {4} and rows.loc["alone", "speedup"].isna().all()
    finished = {name: FinishedCell.of(store.cell(name)) for name in ("ar", "m")}
    for kind in ("code", "prose"):
        own, plain = (one.totals[one.samples["category"] == kind] for one in (finished["m"], finished["ar"]))
        row = rows.loc[("m", kind)]
        assert row["scr"] == own["output"].sum() / own["nfe"].sum()
        ratios = (plain["wall_ms"] / plain["output"]) / (own["wall_ms"] / own["output"])
        assert row["speedup"] == pytest.approx(ratios.median()) and row["acceptance_n"] == 4
    rows = rows.reset_index()
    assert "## By category" in tables.markdown(summarise(store), rows)
    assert by_category(tiny()).empty


@pytest.mark.slow
def test_a_real_store_gives_the_same_rows(frame: pd.DataFrame, tmp_path: Path) -> None:
    fake = suite(6)
    real = Store.create(tmp_path / "run", fake.body)
    for name, records in fake.records.items():
        for one in records:
            real.write(name, one)
        real.seal(name, fake.cell(name).meta)
    pd.testing.assert_frame_equal(summarise(Store.open(tmp_path / "run")), frame, check_dtype=False)
    assert list(fake.cell("t0-ar").steps.columns) == list(real.cell("t0-ar").steps.columns)
    assert set(STEP_FIELDS) <= set(real.cell("t0-ar").steps.columns) and GREEDY["temperature"] == 0.0


@pytest.mark.parametrize(("waiting", "flag"), [(1, False), (2, True)])
def test_steps_that_waited_for_a_core_disturb_the_timing_of_a_cell(waiting: int, flag: bool) -> None:
    """Of ten steps of 12 ms some waited for 1 ms: one in ten is tolerated."""
    steps = [step(1, 2, ms=12.0, wait_ns=1_000_000 if i < waiting else 500_000) for i in range(10)]
    store = tiny().add(meta("m"), [record(f"p{i}", steps) for i in range(4)])
    row = summarise(store).set_index("cell").loc["m"]
    assert row["disturbed_steps"] == waiting / 10
    expected = "disturbed timing: threads waited for a core in 20% of the steps"
    assert (expected in row["flags"]) == flag


def test_a_stopped_process_is_counted_in_the_flags() -> None:
    store = tiny()
    stopped = [record(f"p{i}", [step(stopped_ns=3_000_000_000 * (i == 0)), *[step()] * 9]) for i in range(4)]
    store.add(meta("ar", role="baseline"), stopped)
    store.add(meta("m"), [record(f"p{i}", [step()] * 10) for i in range(4)])
    rows = summarise(store).set_index("cell")["flags"]
    words = (
        "disturbed timing: the process was stopped in {}1 of 40 steps, for 3.0 s together, which its times leave out"
    )
    assert words.format("") in rows["ar"] and words.format("the baseline's ") in rows["m"]


@pytest.mark.parametrize(
    ("estimate", "low", "high", "unlike"),
    [
        (1.1, 1.05, 1.2, False),
        (1.1, 1.051, 1.2, True),
        (0.97, 0.9, 1 / 1.05, False),
        (0.97, 0.9, 0.952, True),
        (1.25, None, None, False),
        (1.26, None, None, True),
        (0.8, None, None, False),
        (0.79, None, None, True),
    ],
)
def test_bounds_from_which_on_a_decoding_is_unlike_itself(
    estimate: float, low: float | None, high: float | None, unlike: bool
) -> None:
    assert unlike_itself(Interval(estimate, low, high, 9)) == unlike


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({}, "exact on toys: nothing seen in 3,072 tokens, 9,000 are needed"),
        ({"role": "method", "audit_needed": None}, "exact on toys: nothing seen in 3,072 tokens, many more are needed"),
        ({"audit_visible_tv": np.nan, "audit_tokens": 0}, "exact on toys: nothing seen in 0 tokens, 9,000 are needed"),
        ({"role": "baseline"}, ""),
        ({"role": "floor"}, ""),
        ({"verdict": "broken"}, ""),
        ({"audit_visible_tv": 0.04}, ""),
        ({"audit_tokens": None}, ""),
        ({"audit_tokens": np.nan}, ""),
    ],
)
def test_an_exact_verdict_without_enough_tokens_says_what_it_rests_on(row: dict[str, object], flag: str) -> None:
    plain = {"verdict": "exact", "audit_tokens": 3072, "audit_visible_tv": None, "audit_needed": 9000}
    assert blind_flags({**plain, **row}) == [flag] * bool(flag)


def test_a_drafter_that_drafts_otherwise_anew_is_flagged_above_rounding() -> None:
    row = {"drafter_tv": 0.21, "drafter_tv_limit": 0.2, "drafter_places": 7, "drafter_acceptance": 0.5}
    row |= {"drafter_acceptance_anew": 0.625}
    samples = tiny().cell("m").samples.assign(unread=["", "", "the last 3 of 9 tokens", "", "all"])

    def shown(**changes: float | None) -> list[str]:
        quiet = {"note": "", "verdict": "unverified", "speedup": 1.0}
        return measured_flags({**row, **quiet, **changes}, ["x"], samples, pd.DataFrame({"tested": [9.0]}))

    cut = "2 of 4 prompts were read in part: the last 3 of 9 tokens (p1)"
    assert shown(drafter_tv=0.2) == shown(drafter_tv=None) == shown(drafter_tv_limit=None) == ["x", cut]
    _, flag, _ = shown()
    assert flag.endswith("variation 0.21 in 7 places (rounding: 0.2), acceptance 0.500, anew 0.625")


def test_bounds_of_flags_lie_where_the_guide_says() -> None:
    for predicted, fits in ((0.85, True), (0.84, False), (2.3, True), (2.31, False)):
        assert (mismatch_flags({"speedup_low": 1.0, "speedup_high": 2.0, "predicted": predicted}) == []) == fits
    frame = pd.DataFrame({"tested": [200.0]})
    samples = pd.DataFrame({"warmup": [False], "status": ["ok"], "error": [None], "unread": [""], "prompt": ["p"]})
    quiet = {"note": "", "verdict": "unverified", "speedup": 1.0, "acceptance": 0.01, "tv_p": 0.0011, "ks_p": 0.0011}
    assert measured_flags(quiet, [], samples, frame) == []
    loud = {**quiet, "acceptance": 0.0099, "tv_p": 0.001, "ks_p": 0.001, "n_failed": 2, "n_run": 19}
    words = ("invalid: 2 of 19 failed", "dead drafter", "tokens are dist", "log-probabilities are dist")
    shown = measured_flags(loud, [], samples, frame)
    assert all(flag.startswith(word) for flag, word in zip(shown, words, strict=True))
    assert len(measured_flags(loud, [], samples, pd.DataFrame({"tested": [199.0]}))) == 3  # too few to call it dead


@pytest.mark.parametrize(
    ("readings", "share"),
    [
        ([(0, 0)] * 4, 0.0),
        ([(1980, 0)] * 4, 0.0),
        ([(1980, 1), (1980, 1), (1980, 0), (1980, 0)], 0.5),
        ([(1980, 0), (1980, 0), (1980, 0), (1500, 0)], 0.25),
        ([(1980, 0), (1980, 0), (1980, 0), (1800, 0)], 0.0),
    ],
)
def test_a_slow_clock_and_foreign_processes_of_a_gpu_disturb_steps(
    readings: list[tuple[int, int]], share: float
) -> None:
    steps = [step(1, 2, gpu_mhz=mhz, foreign=foreign) for mhz, foreign in readings]
    store = tiny().add(meta("m"), [record("p0", steps)])
    row = summarise(store).set_index("cell").loc["m"]
    assert row["disturbed_steps"] == share
    words = f"disturbed timing: threads waited, or the GPU was shared or slow, in {share:.0%} of the steps"
    assert (words in row["flags"]) == (share > 0)
