"""Predictions that can be made by hand: a machine of round figures, and cells of few steps."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import UsageError
from stridebench.harness.run import machine_profile
from stridebench.harness.run.group import facts_of
from stridebench.reports import machines, predict
from tests.support.cli import refused, stride
from tests.support.fake_store import FakeStore, meta, record, step, tiny
from tests.support.page_runs import stored

# 1 GB/s and 1 GFLOP/s: 1 M parameters in bf16 are read in 2 ms, and one row takes 2 ms too. A launch takes 1 us.
SLOW = machines.Machine("slow", 1e9, {"bf16": 1e9, "fp32": 5e8}, 1e-6, {})
WIDE = machines.Machine("wide", 1e9, {"bf16": 1e15}, 0.0, {})


def counts(rows: list[int], drafts: int, tokens: int, share: float = 0.0, host_s: float = 0.0) -> predict.Counts:
    ones = np.ones(len(rows))
    drafted = np.array([float(drafts)] * len(rows))
    return predict.Counts("bf16", "bf16", 1e6, ones, np.array(rows, float), drafted, ones * host_s, share, tokens)


def test_a_pass_takes_the_longer_of_reading_and_multiplying_and_its_launches() -> None:
    assert SLOW.pass_s(1e6, "bf16", "bf16", 1, 100) == pytest.approx(0.002 + 1e-4)
    assert SLOW.pass_s(1e6, "bf16", "bf16", 4, 0) == pytest.approx(0.008)
    assert SLOW.pass_s(1e6, "fp32", "fp32", 1, 0) == pytest.approx(0.004)
    assert SLOW.pass_s(1e6, "int4", "bf16", 1, 0) == pytest.approx(0.002)  # 0.5 ms to read, 2 ms to multiply
    assert WIDE.pass_s(1e6, "int4", "bf16", 1, 0) == pytest.approx(0.0005)


def test_a_drafter_and_the_host_are_charged() -> None:
    """Two steps of 2 ms, in each 3 drafter passes of a tenth and 1 ms of the host: 3.6 ms a step for 3 tokens."""
    ours = counts([4] * 2, 3, 6, share=0.1, host_s=0.001)
    assert ours.seconds_per_token(WIDE, 1, 0) == pytest.approx((0.002 + 3 * 0.0002 + 0.001) / 3)
    assert ours.seconds_per_token(WIDE, 2, 0) == pytest.approx((0.002 + 3 * 0.0002 + 0.002) / 3)


def test_the_gain_ends_where_rows_are_no_longer_free() -> None:
    """Bytes are read in 2 ms. Plain takes B / 10 ms more than that from 20 rows on, ours with 4 rows from 5 on."""
    machine = machines.Machine("m", 1e9, {"bf16": 2e10}, 0.0, {})  # a row takes 0.1 ms
    plain, ours = counts([1] * 6, 0, 6), counts([4] * 2, 0, 6)

    def gain(batch: int) -> float:
        return plain.seconds_per_token(machine, batch, 0) / ours.seconds_per_token(machine, batch, 0)

    assert gain(5) == pytest.approx(3) and gain(10) == pytest.approx(1.5)
    assert predict.gains(gain) == [(1, 14)]  # 60 rows take 6 ms, three times 2
    assert predict.gains(lambda batch: 0.9) == []
    assert predict.gains(lambda batch: 2.0) == [(1, predict.LARGEST)]


def test_a_gain_that_rises_with_the_batch_is_found() -> None:
    """The host's time grows with the batch, so a method that saves it can gain at a large batch alone."""
    assert predict.gains(lambda batch: {1: 0.77, 2: 1.07}.get(batch, 1.41)) == [(2, predict.LARGEST)]
    assert predict.gains(lambda batch: 1.2 if 5 <= batch <= 100 else 0.9) == [(5, 100)]
    assert predict.gains(lambda batch: 1.2 if batch < 3 or 50 <= batch <= 600 else 0.9) == [(1, 2), (50, 600)]


@pytest.mark.parametrize(
    ("text", "number"),
    [("135 M; 93 MB", 135e6), ("8.03 B, 16.1 GB", 8.03e9), ("343 M", 343e6), ("", None), (None, None), ("many", None)],
)
def test_the_parameters_of_a_preset(text: str | None, number: float | None) -> None:
    assert predict.parameters_of(text) == (None if number is None else pytest.approx(number))


FIGURE = {"value": 1.0, "source": "a test"}
FITTED = dict.fromkeys(("bandwidth_gb_s", "tflops", "layer_us", "row_us"), 1.0)


def profile(**changes: Any) -> str:
    """The text of a profile of which some entries are wrong."""
    return yaml.safe_dump({"bandwidth_gb_s": FIGURE, "tflops": {"bf16": FIGURE}, "launch_us": FIGURE, **changes})


class TestProfiles:
    @pytest.mark.parametrize("name", machines.machines())
    def test_those_that_ship_have_every_figure_and_its_source(self, name: str) -> None:
        machine = machines.machine(name)
        assert set(machine.rates) >= {"bf16", "fp16", "fp32"}
        assert all(len(source) >= 4 for source in machine.sources.values())
        assert 1e11 < machine.bandwidth < machine.rates["fp32"]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (profile(bandwidth_gb_s=None), "lacks bandwidth_gb_s:"),
            (profile(tflops={}), "lacks tflops:"),
            (profile(tflops={"bf16": {"value": 1}}), "lacks tflops.bf16 (its source is missing):"),
            (profile(launch_us={**FIGURE, "source": ["x"]}), "source: text that says where it is from"),
            (profile(launch_us={**FIGURE, "value": "fast"}), "lacks launch_us (its value is 'fast'):"),
            (profile(launch_us={**FIGURE, "value": 0}), "lacks launch_us (its value is 0):"),
            (profile(launch_us={**FIGURE, "value": float("nan")}), "lacks launch_us (its value is nan):"),
            (profile(launch_us={**FIGURE, "value": 1e-320}), "a number from 1e-06 to 1e+06"),
            (profile(measured={"bf16": {**FITTED, "row_us": None, "source": "x"}}), "lacks measured.bf16.row_us:"),
            (profile(measured={"bf16": FITTED}), "measured.bf16.row_us (its source is missing):"),
            (profile(measured={"bf16": 3}), "measured.bf16.bandwidth_gb_s"),
            (profile(measured=[1]), "measured.type.bandwidth_gb_s"),
            ("- 1", "lacks bandwidth_gb_s, launch_us, tflops:"),
            ("machine: 2024-13-45", "is not YAML: '2024-13-45' is not a value: month must be in 1..12"),
            ("a: " + "[" * 3000, "nested deeper than 40 levels"),
            ("a: [unclosed", "is not YAML: while parsing a flow sequence in"),
            (f"launch_us: {{value: {'9' * 400}, source: x}}", "lacks bandwidth_gb_s, launch_us (its value is 9999"),
            (f"launch_us: {{value: {'9' * 5000}, source: x}}", "is not YAML"),
            ("launch_us: {value: 1e3, source: x}", "launch_us (its value '1e3' is text in YAML 1.1; write it as 1000"),
        ],
        ids=range(19),
    )
    def test_a_profile_that_cannot_be_used_is_one_error(self, tmp_path: Path, text: str, says: str) -> None:
        (tmp_path / "m.yaml").write_text(text)
        with pytest.raises(UsageError) as error:
            machines.machine(str(tmp_path / "m.yaml"))
        assert says in str(error.value)

    @pytest.mark.parametrize(("name", "says"), [("h200", "h100-sxm"), ("../m.yaml", "is not known")])
    def test_a_profile_that_is_not_there_is_one_error(self, name: str, says: str) -> None:
        assert says in refused("paper", "predict", "run", "--machine", name)

    def test_a_measured_profile_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine_profile, "WIDTH", 64)
        monkeypatch.setattr(machine_profile, "REPEATS", 1)
        monkeypatch.setattr(machine_profile, "_bytes_read", lambda kind: 100_000)
        monkeypatch.setattr(machine_profile, "MODELS", {"random-llama-1m": 1.05e6})
        monkeypatch.setattr(machine_profile, "PASS_ROWS", (1, 8))
        monkeypatch.setattr(
            machine_profile, "FITTED", {"bf16": ("bf16", "", 2.0), "int8": ("bf16", ":weights=int8", 1.0)}
        )
        machine_profile.write(tmp_path / "here.yaml")
        machine = machines.machine(str(tmp_path / "here.yaml"))
        assert set(machine.measured) == {"bf16", "int8"} and "random-llama-1m" in machine.sources["measured.int8"]
        assert 1e-7 < machine.pass_s(1.05e6, "bf16", "bf16", 8, 0, layers=5) < 1
        assert machine.bandwidth > 0 and set(machine.rates) == {"fp32", "bf16"}
        assert "measured on" in machine.sources["launch_us"]
        assert re.search("one row times (7|13) matrices of 64 x 64", machine.sources["bandwidth_gb_s"])

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
    def test_a_profile_of_a_gpu_that_is_not_here_is_one_error(self, tmp_path: Path) -> None:
        assert "--device cuda: " in refused("doctor", "--profile", tmp_path / "gpu.yaml", "--device", "cuda")
        assert "name a file" in refused("doctor", "--device", "cuda")
        assert not list(tmp_path.iterdir())

    def test_a_gpu_is_timed_by_its_own_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The host's clock would see launches alone."""
        event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 4.0)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        assert machine_profile._best(lambda: None, "cuda") == pytest.approx(0.004)
        assert machine_profile._best(lambda: None, "cpu") < 0.004

    def test_the_weights_that_are_read_do_not_fit_the_caches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for cpu, (shared, size) in enumerate([("0-1", "96M"), ("0-1", "96M"), ("2", "32768K")]):
            for index, (level, held) in enumerate([("1", "32K"), ("3", size)]):
                cache = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
                cache.mkdir(parents=True)
                for name, words in (("level", level), ("size", held), ("shared_cpu_list", shared)):
                    (cache / name).write_text(f"{words}\n")
        assert machine_profile.last_level_caches(tmp_path) == 128 * 1024**2
        assert machine_profile.last_level_caches(tmp_path / "none") is None
        monkeypatch.setattr(machine_profile, "last_level_caches", lambda: 128 * 1024**2)
        assert machine_profile._bytes_read("cpu") == 512 * 1024**2
        assert machine_profile._bytes_read("cuda") == 2 * 1000**3

    def test_what_is_assumed_is_called_so(self) -> None:
        sources = machines.machine("m1-max").sources
        assert all(sources[f"tflops.{kind}"].startswith("assumed") for kind in ("bf16", "fp16"))

    def test_a_source_does_not_reach_the_terminal_raw(self, tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(profile(launch_us={**FIGURE, "source": "a \x1b[31mtest"}))
        outcome = stride("paper", "predict", stored(toy(), tmp_path / "run").path, "--machine", tmp_path / "m.yaml")
        assert outcome.code == 0 and "\x1b" not in outcome.out and r"launch_us: a \x1b[31mtest" in outcome.out


class TestMeasuredPasses:
    def test_the_sum_that_made_them_is_found(self) -> None:
        """1 GB/s, 1 TFLOP/s, 40 us a layer and 2 us a row of it, in three sizes."""
        timed = [
            machine_profile.TimedRows(
                size, layers, rows, 1e3 * (2 * size / 1e9 + 2 * size * rows / 1e12 + layers * (40e-6 + 2e-6 * rows))
            )
            for size, layers in ((1e6, 5), (5e6, 7), (1e8, 30))
            for rows in (1, 4, 16, 64)
        ]
        fitted = machine_profile.fit(timed, 2.0)
        figures = [fitted.bandwidth_gb_s, fitted.tflops, fitted.layer_us, fitted.row_us]
        assert figures == pytest.approx([1.0, 1.0, 40.0, 2.0], rel=1e-6) and fitted.error < 1e-9

    def test_a_cost_that_is_nothing_is_still_a_figure_of_a_profile(self) -> None:
        timed = [machine_profile.TimedRows(1e6, 5, rows, 1.0) for rows in (1, 4, 16)]
        fitted = machine_profile.fit(timed, 2.0)
        assert fitted.row_us >= machines.SMALLEST and fitted.tflops <= 1 / machines.SMALLEST

    def test_a_pass_is_their_sum_where_a_sheet_takes_the_longer(self) -> None:
        costs = machines.PassFit(bandwidth=1e9, rate=1e9, layer_s=1e-4, row_s=1e-5)
        here = machines.Machine("here", 1e9, {"bf16": 1e9, "fp32": 5e8}, 1e-6, {}, {"bf16": costs})
        assert here.pass_s(1e6, "bf16", "bf16", 4, 100, layers=10) == pytest.approx(0.002 + 0.008 + 0.001 + 0.0004)
        assert here.pass_s(1e6, "fp32", "fp32", 4, 100) == SLOW.pass_s(1e6, "fp32", "fp32", 4, 100)

    def test_layers_are_those_of_the_record(self) -> None:
        costs = machines.PassFit(bandwidth=1e15, rate=1e18, layer_s=1e-3, row_s=0.0)
        here = machines.Machine("here", 1e15, {"bf16": 1e18}, 0.0, {}, {"bf16": costs})
        for layers in (2, 20):  # 1.8 ms of the host, and 1.16 ms of passes a layer
            store = toy(layers=layers).add(meta("ar", role="baseline", layers=layers), BASE)
            assert row_of(store, here)["host_share"] == pytest.approx(1.8 / (1.8 + layers * 1.16))


def test_a_speed_up_is_the_median_over_outputs_as_a_measured_one_is() -> None:
    slow = [step(0, 2, ms=12.0)] * 10
    uneven = [record(prompt, slow if prompt == "p0" else [step(1, 2, ms=12.0)] * 5) for prompt in PROMPTS]
    row, even = row_of(toy().add(meta("m"), uneven)), row_of(toy())
    assert row["predicted_median"] == pytest.approx(even["predicted_median"]) == even["predicted"]
    assert row["predicted"] < 0.9 * even["predicted"]


def toy(**changes: Any) -> FakeStore:
    """Four prompts of a model of 1 M parameters: 10 passes of a row, and 5 passes of three rows and 2 small ones."""
    store = tiny(**changes)
    store.body["sizes"] = {"toy-135m": "1 M; 2 MB"}
    return store


def row_of(store: Any, on: machines.Machine = WIDE, **options: Any) -> Any:
    return predict.predict(store, on, kernels=0, **options).set_index("cell").loc["m"]


PROMPTS = [f"p{i}" for i in range(4)]
BASE = [record(prompt, [step()] * 10) for prompt in PROMPTS]
GOOD = [record(prompt, [step(1, 2, ms=12.0)] * 5) for prompt in PROMPTS]


def test_a_figure_with_the_time_of_the_host_has_one_without() -> None:
    """A pass takes 2 ms. One of the drafter took 0.6 ms in the run and one of the baseline 7.5: it takes 0.16 ms here.

    The host takes 1.5 ms a step of the baseline, 1.8 of the method.
    """
    row = row_of(toy())
    assert row["predicted_no_host"] == pytest.approx(2 / (2.32 / 2))
    assert row["predicted"] == pytest.approx(3.5 / (4.12 / 2))
    assert row["host_share"] == pytest.approx(1.8 / 4.12)
    assert row["gains_no_host"] == [(1, predict.LARGEST)] and row["outputs"] == 4


def test_tokens_beyond_the_end_of_an_output_are_not_counted() -> None:
    steps = [*[step(1, 2, ms=12.0)] * 4, step(1, 2, ms=12.0, overshoot=1)]
    row = row_of(toy().add(meta("m"), [record(prompt, steps) for prompt in PROMPTS]))
    assert row["predicted_no_host"] == pytest.approx(2 / (5 * 2.32 / 9))


def test_only_outputs_that_both_finished_are_counted() -> None:
    expected = row_of(toy())["predicted"]
    failed = record("p4", [step(9, 9, ms=1.0)] * 9, status="failed", error="boom")
    alone = record("p5", [step(9, 9, ms=1.0)] * 9)
    store = toy().add(meta("m"), [*GOOD, failed, alone])
    broken = record("p6", [step(ms=1.0)], status="failed", error="boom")
    store.add(meta("ar", role="baseline"), [*store.records["ar"], broken])
    row = row_of(store)
    assert row["predicted"] == pytest.approx(expected) and row["outputs"] == 4
    assert row["flags"] == "invalid: 1 of 6 failed: boom"
    none = toy().add(meta("m"), [alone])
    assert row_of(none)["reason"] == "no output was finished by it and its baseline"
    assert row_of(toy().add(meta("m"), [failed]))["reason"] == "no output was finished by it and its baseline"


def test_a_run_that_was_not_timed_has_no_host_and_nothing_measured() -> None:
    store = toy()
    for name in ("ar", "m"):
        plain = [record(p, [step(0 if name == "ar" else 1, 2, draft_nfe=0)] * 5) for p in PROMPTS]
        store.add(meta(name, role="baseline" if name == "ar" else "method", timed=False), plain)
    row = row_of(store, measured=True)
    assert row["predicted"] is None and row["measured"] is None and row["gains"] is None and row["host_share"] is None
    assert row["predicted_no_host"] == pytest.approx(2) and row["flags"] == "not timed (timing: off)"
    assert predict.scatter(predict.predict(store, WIDE, measured=True)) is None  # type: ignore[arg-type]
    store.add(meta("m", timed=False), GOOD)
    assert row_of(store)["reason"] == "the size of its drafter follows from times, and its run was not timed"


def test_guidance_reads_every_row_once_a_branch() -> None:
    once, twice = (
        toy(branches=branches).add(meta("ar", role="baseline", branches=branches), BASE) for branches in (1, 2)
    )
    on = machines.Machine("m", 1e9, {"bf16": 5e8}, 0.0, {})  # a row takes 4 ms, and reading 2
    assert row_of(once, on)["predicted_no_host"] == pytest.approx(row_of(twice, on)["predicted_no_host"])
    many = machines.Machine("m", 1e9, {"bf16": 1e10}, 0.0, {})  # a row takes 0.2 ms
    ends = [row_of(store, many)["gains_no_host"][-1][1] for store in (once, twice)]
    assert ends[0] // 2 == ends[1] < predict.LARGEST // 2
    older = toy(modality="image").add(meta("ar", role="baseline", modality="image"), BASE)
    assert "whether guidance reads every row twice" in row_of(older)["reason"]


def test_the_record_of_a_cell_says_how_often_guidance_reads_a_row() -> None:
    backbone = SimpleNamespace(capabilities=Capabilities(9, 9, branches=2), fingerprint="", forward_kind="", notes=())
    group: Any = SimpleNamespace(backbone=backbone, options=SimpleNamespace(device="cpu"))
    cell: Any = SimpleNamespace(method=SimpleNamespace(drafters=lambda: (), components=()))
    assert facts_of(group, cell).branches == 2


def test_a_cell_that_cannot_be_predicted_has_the_reason_in_its_row(tmp_path: Path) -> None:
    store = toy().add(meta("fp16", dtype="fp16"), GOOD)
    frame = predict.predict(store, WIDE, kernels=0).set_index("cell")  # type: ignore[arg-type]
    assert "lacks a rate of fp16" in frame.loc["fp16", "reason"] and frame.loc["m", "reason"] is None
    outcome = stride(
        "paper", "predict", stored(toy().add(meta("x", dtype="int3"), GOOD), tmp_path).path, "--machine", "l4"
    )
    assert outcome.code == 0 and "! x: the profile l4 lacks a rate of int3" in outcome.out


def test_nothing_to_predict_is_one_error(tmp_path: Path) -> None:
    store = toy()
    store.body["sizes"] = {"another": "1 M"}
    assert "states no size" in refused(
        "paper", "predict", stored(store, tmp_path / "toy").path, "--machine", "l4", "--json"
    )
    none = stored(toy(), tmp_path / "none", unsealed=("m",)).path
    assert "nothing can be predicted: it lacks a finished cell of a method" in refused(
        "paper", "predict", none, "--machine", "l4"
    )


def test_the_table_shows_verdicts_flags_and_both_figures(tmp_path: Path) -> None:
    store = toy(verdict={"word": "broken", "total_variation": 0.1, "note": ""})
    stored(store.add(store.sealed_cells["m"].facts, [*GOOD, record("p4", [], status="failed", error="boom")]), tmp_path)
    out = stride("paper", "predict", tmp_path, "--machine", "l4").out
    for words in ("predicted, no host", "host share", "broken (TV 0.1)", "! m: invalid: 1 of 5 failed: boom"):
        assert words in out
    assert "of the run's machine" in " ".join(out.split())
    (row,) = stride("paper", "predict", tmp_path, "--machine", "l4", "--json").document["cells"]
    assert row["verdict"] == "broken (TV 0.1)" and row["flags"].startswith("invalid") and 0 < row["host_share"] < 1


def test_the_command_prints_its_assumptions_and_the_scatter(tmp_path: Path) -> None:
    words = ("paper", "predict", stored(toy(), tmp_path / "run").path, "--machine", "l4")
    plain = stride(*words, "--measured", "--figure", tmp_path / "scatter.svg")
    assert plain.code == 0 and "worst" in plain.out and "KV cache is not counted" in plain.out and "300" in plain.out
    assert "predicted speed-up" in (tmp_path / "scatter.svg").read_text()
    assert "add --measured" in refused(*words, "--figure", tmp_path / "x.png")
    document = stride(*words, "--json").document
    assert set(document) == {"machine", "assumptions", "cells", "scatter"} and document["scatter"] is None
    assert [row["cell"] for row in document["cells"]] == ["m"]


def test_a_step_costs_its_rows_its_drafts_and_the_host_of_the_baseline() -> None:
    """A row takes 10 ms, 3 rows a fifth more, 5 rows two fifths; a draft takes 2 ms and the host 1 ms."""
    prices = predict.StepPrices(10.0, [[1, 5.0], [3, 6.0], [5, 7.0]], 2.0, 1.0)
    assert [prices.step(*draft) for draft in ((0, 0), (0, 1), (1, 1), (2, 3), (4, 4))] == pytest.approx(
        [11, 13, 14, 19, 23]
    )
    assert prices.step(6, 6) == pytest.approx(10 * 8 / 5 + 12 + 1)  # 7 rows, beyond those that were timed
