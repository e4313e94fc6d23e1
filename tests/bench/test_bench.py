"""The benchmarks of ourselves: pairs, verdicts, rows that are kept, and each benchmark at a small size."""

from __future__ import annotations

import gc
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from stridebench.harness.errors import UsageError
from stridebench.harness.run import machine_profile
from tests.bench import __main__ as runner
from tests.bench import decoding, gpu, growth, large, reading, startup, timing
from tests.bench.timing import Row, Settings, compare, in_turn

SMALL = Settings(backbone="embedded-code", pairs=1, tokens=8, threads=1, seconds=math.inf)
CONTINUATION = ("run", "--task", "{name: continuation, limit: 1}", "-t", "0")


class TestPairs:
    def test_the_side_that_goes_first_alternates_and_the_first_input_warms_up(self) -> None:
        calls: list[str] = []

        def side(name: str, each: int) -> float:
            calls.append(f"{name}{each}")
            return float(each)

        sides = [partial(side, name) for name in "ab"]
        assert in_turn(sides, range(3), Settings()) == [[1.0, 1.0], [2.0, 2.0]]
        assert calls == ["b0", "a0", "a1", "b1", "b2", "a2"]

    def test_no_pair_begins_when_the_time_is_over(self) -> None:
        assert len(in_turn([float, float], range(9), Settings(seconds=-1))) == 1

    @pytest.mark.parametrize(
        ("ours", "pairs", "verdict"), [(1.9, 24, "pass"), (1.5, 24, "fail"), (1.9, 23, "inconclusive")]
    )
    def test_the_verdict_is_that_of_the_interval(self, ours: float, pairs: int, verdict: str) -> None:
        row = compare("x", [[100 * ours + pair % 3, 100.0] for pair in range(pairs)], "tokens/s", 1.7)
        assert (row.verdict, row.pairs) == (verdict, pairs) and abs((row.ratio or 0) - ours) < 0.02
        assert timing.verdict_of(row.low, row.high, 1.7, pairs, most=True) == {"pass": "fail", "fail": "pass"}.get(
            verdict, verdict
        )


class TestRows:
    def kept(self, path: Path, settings: Settings, benchmarks: dict[str, timing.Bench]) -> list[dict[str, object]]:
        told = list(runner.run(settings, benchmarks, path, lambda name: None))
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert "machine" in head and [row["name"] for row in rows] == [row.name for row in told]
        return rows

    def test_what_cannot_run_is_a_row_with_its_reason_and_the_rest_follows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(name: str, settings: Settings) -> Iterator[Row]:
            yield Row(f"{name}: first", 1.0)
            raise ZeroDivisionError("no steps")

        monkeypatch.setenv(decoding.VARIABLE, str(tmp_path / "none"))
        monkeypatch.setattr(timing, "native_dtype", lambda device: "fp32")
        monkeypatch.setattr(large, "MATRIX", 100)
        names = ("llama-bench int4 window of 8", "autoregressive bf16")
        chosen = {name: (decoding.BENCHMARKS | decoding.NAMED)[name] for name in names}
        rows = self.kept(tmp_path / "a.jsonl", SMALL, {**chosen, "broken": broken, "scale matrix": large.expansion})
        verdicts = [(row["verdict"], str(row["note"])) for row in rows]
        assert [verdict for verdict, _ in verdicts] == ["skipped", "skipped", "", "error", "pass"]
        assert decoding.VARIABLE in verdicts[0][1] and "does not multiply bf16" in verdicts[1][1]
        assert verdicts[3][1] == "ZeroDivisionError: no steps"

    def test_a_row_is_written_before_the_next_begins(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"

        def act(name: str, settings: Settings) -> Iterator[Row]:
            for number in range(3):
                assert len(path.read_text().splitlines()) == 1 + number
                yield Row(str(number), 1.0)

        assert len(self.kept(path, SMALL, {"a": act})) == 3

    def test_a_time_that_is_over_leaves_benchmarks_out_by_name(self, tmp_path: Path) -> None:
        rows = self.kept(tmp_path / "a.jsonl", replace(SMALL, seconds=-1), gpu.BENCHMARKS)
        assert [(row["verdict"], row["note"]) for row in rows] == [("skipped", "the time was over")] * len(
            gpu.BENCHMARKS
        )

    def test_names_are_parts_and_those_of_a_gpu_are_asked_for(self) -> None:
        assert list(runner.chosen("")) == list(decoding.BENCHMARKS)
        assert list(runner.chosen("scale by")) == list(growth.BENCHMARKS)
        assert list(runner.chosen("gpu")) == list(gpu.BENCHMARKS)
        assert not set(runner.chosen("overhead")) & set(gpu.BENCHMARKS)
        with pytest.raises(click.UsageError, match=r"no benchmark is called 'x9'; there are autoregressive"):
            runner.chosen("x9")

    def test_the_command_prints_a_table_and_keeps_the_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(large, "MATRIX", 100)
        done = CliRunner().invoke(runner.main, ["scale matrix", "--out", str(tmp_path / "a.jsonl")])
        assert done.exit_code == 0 and "pass" in done.stdout, done.output
        assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])["verdict"] == "pass"


@pytest.mark.slow
class TestDecoding:
    @pytest.mark.parametrize(
        "act",
        [
            decoding.beside_baseline("prompt_lookup", timing.LOOKUP, 1.0),
            decoding.beside_generate("autoregressive", "fp32", None, forced=True),
            decoding.quantized("int4"),
            decoding.overhead("prompt_lookup", "fp32", timing.GREEDY, 0.5, "share"),
            decoding.windows("fp32"),
        ],
    )
    def test_a_benchmark_has_figures(self, act: timing.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timing, "check_type", lambda dtype, device: None)
        for row in act("x", replace(SMALL, backbone="random-llama-1m", pairs=2)):
            assert row.ours and row.peer and row.ratio and row.verdict in ("", "inconclusive")

    def test_every_row_of_a_gpu_has_a_figure_or_a_reason(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        suite = "methods: [{name: sjd, window: 4}]\nbackbones: [embedded-code]\nmax_new_tokens: 6\n"
        (tmp_path / "small.yaml").write_text(suite + "tasks: [{name: continuation, limit: 1}]\n")
        figure = {"value": 10.0, "source": "a test"}
        body = {"bandwidth_gb_s": figure, "launch_us": figure, "tflops": {"fp32": figure}}
        monkeypatch.setattr(machine_profile, "measure", lambda device: body)
        settings = replace(SMALL, backbone="random-llama-1m", graphs=True, suites=(str(tmp_path / "small.yaml"),))
        names = ("gpu profile", "gpu equality", "gpu captured", "gpu methods")
        benchmarks = {name: gpu.BENCHMARKS[name] for name in names}
        rows = list(runner.run(settings, benchmarks, tmp_path / "a.jsonl", lambda name: None))
        assert all(row.ours or row.verdict == "skipped" for row in rows), rows
        assert [row.verdict for row in rows if "equality" in row.name] == ["pass"] * 3
        assert any("tokens a step" in row.note for row in rows if row.name.startswith("gpu methods: sjd"))


class TestLlama:
    def program(self, folder: Path, body: str) -> str:
        path = folder / "llama-bench"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    @pytest.mark.parametrize(("what", "asked"), [("autoregressive", "-p 0 -n 8"), ("window", "-p 8 -n 0")])
    def test_both_sides_are_timed_in_turn_on_one_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, asked: str
    ) -> None:
        rate = 'echo "$@" >> "$0.calls"; echo \'[{"avg_ts": 123.5}]\''
        path = self.program(tmp_path, f'case "$*" in *"--repack 0") ;; *) kill -SEGV $$ ;; esac; {rate}')
        monkeypatch.setenv(decoding.VARIABLE, path)
        monkeypatch.setattr(timing, "check_type", lambda dtype, device: None)
        monkeypatch.setattr(decoding.sources, "gguf", lambda name, source: tmp_path / "model.gguf")
        (row,) = decoding.beside_llama(what, 0.9)(what, replace(SMALL, backbone="random-llama-1m", pairs=2))
        assert row.peer == 123.5 and (row.ours or 0) > 0 and row.pairs == 2 and "AMX" in row.note
        calls = Path(f"{path}.calls").read_text().splitlines()
        assert len(calls) == 3 and all(asked in call and call.endswith("--repack 0") for call in calls)


class TestGrowth:
    def test_what_grows_faster_than_its_work_fails(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        now, rows = [0.0], []

        def prepare(power: int, size: int) -> Iterator[growth.Prepared]:
            yield lambda: now.__setitem__(0, now[0] + 1e-3 * size**power)

        monkeypatch.setattr(growth, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        monkeypatch.setattr(gc, "collect", lambda: 0)
        for power, verdict in ((1, "pass"), (2, "fail")):
            benchmark = growth.growth("things", (10, 20, 40), partial(prepare, power), "a loop")
            rows += benchmark("scale by things", Settings())
            assert rows[-1].verdict == verdict and rows[-1].ratio == pytest.approx(power)
            assert [point[0] for point in rows[-1].points] == [10.0] * 3 + [20.0] * 3 + [40.0] * 3
        growth.draw(rows, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(("axis", "size"), [("prompts", 3), ("cells", 20), ("steps", 200), ("vocabulary", 64)])
    def test_each_axis_works_at_a_small_size(self, axis: str, size: int) -> None:
        for timed in getattr(growth, axis)(size):
            timed()


class TestLarge:
    def test_a_small_folder_is_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, size in (("SAMPLES", 8), ("CELLS", 4), ("WORKED", 4)):
            monkeypatch.setattr(large, name, size)
        rows = itertools.chain(large.opening("folder", SMALL), large.a_cell("cell", SMALL))
        assert [bool(row.ours) and " cells of " in row.note for row in rows] == [True, True]


class TestStartup:
    @pytest.mark.audit
    def test_a_first_token_comes_between_the_imports_and_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(startup, "DECODE", CONTINUATION)
        monkeypatch.setattr(startup, "check_type", lambda dtype, device: None)
        (row,) = startup.first_token(600.0)("startup first token", SMALL)
        assert 0 < (row.ours or 0) < 600 and row.verdict == "inconclusive"  # one round is too few
        with pytest.raises(UsageError, match="ended with 2"):
            startup.first(replace(SMALL, backbone="none"))


def test_a_command_that_reads_a_run_is_timed_without_torch(tmp_path: Path) -> None:
    places = {"RUN": tmp_path / "run", "SITE": tmp_path / "site"}
    (row,) = reading.reading(("report", "RUN/none"), 100.0, True, lambda: places)("reading x", SMALL)
    assert row.verdict == "inconclusive" and row.pairs == 1 and row.note.endswith("no torch")
    with pytest.raises(RuntimeError, match="ended with 2"):
        next(reading.reading(("report", "SITE"), 100.0, False, lambda: places)("reading x", SMALL))
