"""Every verb from the command line: its output, its one JSON document, its exit code, its one-line error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stridebench.harness.cli.doctor import Check, answer
from stridebench.harness.cli.main import VERBS
from stridebench.harness.cli.main import stride as stride_group
from stridebench.harness.proof.mutants import mutants_of
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store
from tests.support.cli import not_json, refused, stride

SMALL = ("--backbone", "tabular", "--task", "tabular", "--max-new-tokens", "6", "--set", "prove=false")
BOTH = ("run", "--method", "sjd", "--method", "speculative", *SMALL, "-t", 0, "-t", 1, "--out")
"""The run of the fixture; behind it comes its folder."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run: two methods, T = 0 and 1."""
    path = tmp_path_factory.mktemp("cli") / "run"
    result = stride(*BOTH, path, "--json")
    assert result.code == 0, result
    assert result.document == {"run": str(path), "cells": 7, "done": 7, "failed": 0, "malformed": 0, "skipped": 0}
    return path


def verbs(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every verb with the groups that it stands in."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*before, name)
        if isinstance(command, click.Group):
            yield from verbs(command, (*before, name))


def test_every_verb_has_examples_in_its_help_and_the_first_help_fits_one_screen():
    for words in verbs(stride_group):
        result = stride(*words, "--help")
        assert result.code == 0 and f"stride {' '.join(words)}" in result.out, words
    assert len(VERBS) <= 16 and 24 <= len(stride("--help").out.splitlines()) <= 40


def test_a_wrong_verb_of_a_group_proposes_another_and_engines_have_a_suite():
    assert "did you mean 'replay'" in stride("gate", "reply").err
    cells = stride("engine", "run", "--dry-run", "--json").document
    assert cells == stride("run", "servers", "--dry-run", "--json").document and cells["engines"]


FIELDS = {"name", "kind", "claim", "needs", "source"}
LISTED = {
    "methods": ("method", {"claims", "exact_at", "params", "from"}),
    "tasks": ("task", {"params", "metrics", "runs_code"}),
    "backbones": ("backbone", {"meets", "ready", "licence"}),
    "suites": ("suite", {"backbones", "tasks"}),
    "engines": ("engine", {"takes_ids", "gives_ids", "arrival", "acceptance", "counters", "seed", "params"}),
}


@pytest.mark.parametrize("kind", LISTED)
def test_list_gives_the_promised_fields(kind):
    word, more = LISTED[kind]
    rows = stride("list", kind, "--json").document
    assert rows and all(row["kind"] == word and set(row) >= FIELDS | more for row in rows)


def test_list_alone_gives_all_but_the_matrix():
    assert {row["kind"] for row in stride("list", "--json").document} == {word for word, _ in LISTED.values()}


UNKNOWN = {
    "suite": ("run", "quikc"),
    "method": ("run", "--method", "sdj", *SMALL),
    "parameter": ("run", "--method", "{name: sjd, windw: 3}", *SMALL),
    "backbone": ("run", "--method", "sjd", "--backbone", "tabulr", "--task", "tabular"),
    "task": ("run", "--method", "sjd", "--backbone", "tabular", "--task", "tabulr"),
    "key": ("run", "--method", "sjd", *SMALL, "--set", "temprature=0"),
    "verified method": ("verify", "sdj"),
    "verified parameter": ("verify", "sjd", "-p", "windw=3"),
    "fetched": ("fetch", "smollm2-135n"),
    "listed": ("list", "methods", "sjdd"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_name_is_one_line_that_proposes_another(case):
    message = refused(*UNKNOWN[case])
    assert message.count("\n") == 1 and "did you mean" in message


DRY = ("run", "--method", "sjd", *SMALL, "--dry-run")
USAGE = {
    "nothing asked": ("run",),
    "half asked": ("run", "--method", "sjd"),
    "a set without a value": ("run", "--method", "sjd", *SMALL, "--set", "seed"),
    "broken YAML": ("run", "--method", "{name: sjd", *SMALL),
    "limit 0": ("run", "--method", "sjd", *SMALL, "--limit", "0"),
    "limit below 0": ("run", "quick", "--limit", "-1", "--dry-run"),
    "a type of none": ("run", "--method", "sjd", *SMALL, "--dtype", "fp8"),
    "a temperature below 0": ("run", "--method", "sjd", *SMALL, "-t", "-1"),
    "a parameter of no method": ("verify", "-p", "nonsense=1", "--quick"),
    "a parameter twice": ("verify", "sjd", "-p", "window=2", "-p", "window=4", "--quick"),
    "a seed of fixed cases": ("verify", "autoregressive", "--quick", "--seed", "0"),
    "a budget of fixed cases": ("verify", "autoregressive", "--quick", "--budget", "9"),
    "quick random cases": ("verify", "autoregressive", "--quick", "--random", "1"),
    "two seeds": (*DRY, "--seed", "1", "--set", "seed=2"),
    "a key set twice": (*DRY, "--set", "seed=2", "--set", "seed=3"),
    "two temperatures": (*DRY, "-t", "0", "--set", "temperature=1"),
    "two lists of methods": (*DRY, "--set", "methods=jacobi"),
    "a parameter of an entry twice": (*DRY, "--method", "{name: sjd, window: 4, window: 8}"),
    "a budget of tiny models": ("run", "quick", "--tiny", "--budget", "4m", "--dry-run"),
    "a list of one weight": ("list", "weights", "absent"),
    "a schema and a query": ("query", "--schema", "select 1"),
    "a schema as CSV": ("query", "--schema", "--csv"),
    "no run": ("report", "absent"),
    "no run to keep": ("gate", "make", "absent"),
    "no run to gate": ("gate", "check", "absent", "--baseline", "absent.json"),
}


@pytest.mark.parametrize("case", USAGE)
def test_a_wrong_request_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(*USAGE[case]).count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("device", "backbone"), [("cuda:7", "tabular"), ("nowhere", "random-llama-1m")])
def test_an_absent_device_is_named(device, backbone, tmp_path):
    words = ("--backbone", backbone, *SMALL[2:], "--device", device, "--out", tmp_path / "run")
    assert device.partition(":")[0] in refused("run", "--method", "sjd", *words)


def test_a_dry_run_lists_cells_and_reasons_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("run", "--method", "sjd", "--backbone", "tabular", "--task", "tabular", "--task", "continuation")
    rows = stride(*words, "--dry-run", "--json").document["cells"]
    assert [(row["task"], row["status"]) for row in rows] == [
        ("tabular", "planned"),
        ("tabular", "planned"),
        ("continuation", "skipped"),
        ("continuation", "skipped"),
    ]
    text = stride(*words, "--dry-run").out
    assert all(row["cell"] in text for row in rows) and "no tokenizer" in text
    assert "serial executor has the options: none" in refused(*words, "--dry-run", "--executor-option", "workers=3")
    assert not list(tmp_path.iterdir())


def test_an_infinite_threshold_takes_a_limit_too(tmp_path):
    path = tmp_path / "inf.yaml"
    path.write_text("methods: [{name: sjdpp, tau: .inf}]\nbackbones: tabular\ntasks: tabular\n")
    rows = stride("run", path, "--limit", 1, "--dry-run", "--json").document["cells"]
    assert [row["expected"] for row in rows] == [1, 1]


def test_a_run_reports_its_progress_and_its_files(tmp_path):
    foreign = "[" * 200_000  # a line of another program, which Python's reader of JSON cannot read
    (tmp_path / "history.jsonl").write_text(foreign + "\n")
    result = stride("run", "--method", "sjd", *SMALL, "--out", tmp_path / "run", "--append", tmp_path / "history.jsonl")
    assert result.code == 0
    assert "16/16 decodes" in result.err and "sjd" in result.out and "2 cells done" in result.out
    for line in result.out.splitlines():
        if line.startswith("wrote "):
            assert Path(line.removeprefix("wrote ")).stat().st_size > 0
    first, *history = (tmp_path / "history.jsonl").read_text().splitlines()
    assert first == foreign
    rows = [json.loads(line, parse_constant=not_json) for line in history]
    assert [row["label"] for row in rows] == ["autoregressive", "sjd"]


RESUMED = {
    "seed": ("--seed", "3"),
    "max_new_tokens": ("--max-new-tokens", "5"),
    "tasks": ("--limit", "2"),
    "temperature": ("-t", "0.5"),
    "methods": ("--method", "jacobi"),
}


@pytest.mark.parametrize("key", RESUMED)
def test_resuming_another_run_names_the_key_that_differs(run, key):
    assert f" {key}: " in refused(*BOTH, run, *RESUMED[key], "--resume")


@pytest.mark.slow
def test_a_finished_run_is_not_overwritten_and_resuming_it_repeats_nothing(run):
    files = {path: path.stat().st_mtime_ns for path in (run / "cells").rglob("*") if path.is_file()}
    assert "--resume" in refused(*BOTH, run)
    result = stride(*BOTH, run, "--resume", "--json")
    assert (result.code, result.document["done"]) == (0, 7)
    assert files == {path: path.stat().st_mtime_ns for path in files}


def test_resuming_a_stored_suite_ignores_no_option(run):
    assert "it has none" in refused("run", "--out", run, "--resume", "--url", "foo=http://localhost:1")
    assert "leave out --tiny" in refused("run", "--out", run, "--resume", "--tiny")


def test_resuming_without_a_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "--out" in refused("run", "--method", "sjd", *SMALL, "--resume")


def test_report_writes_tables_and_plots(run, tmp_path):
    result = stride("report", run, "--out", tmp_path)
    assert result.code == 0 and "sjd" in result.out and "unverified" in result.out
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 0}
    assert kinds >= {".md", ".csv", ".tex", ".png", ".svg"}


def test_report_gives_a_row_a_cell(run, tmp_path):
    for words in (("--json",), ("--format", "latex"), ("--latex", tmp_path / "t.tex")):
        assert "--out is the folder" in refused("report", run, *words, "--out", tmp_path)
    rows = stride("report", run, "--json").document
    assert [row["cell"] for row in rows] == list(Store.open(run).manifest.cells)
    assert all(row["n_ok"] == 8 and row["n_failed"] == 0 for row in rows)


@pytest.mark.slow
def test_compare_reports_no_difference_of_a_run_to_itself(run, tmp_path):
    document = stride("report", run, "--against", run, "--json", "--out", tmp_path / "compare.md").document
    assert document["rows"] and not document["only_a"] and not document["only_b"]
    assert all(row["difference"] == 0 and row["equal"] == row["pairs"] for row in document["rows"])
    assert (tmp_path / "compare.md").stat().st_size > 0
    assert "sjd" in stride("report", run, "--against", run).out


def test_show_goes_from_the_run_to_one_output(run):
    cells = stride("show", run, "--json").document
    assert cells == Store.open(run).cells() and stride("show", run).out.split() == cells
    name = next(cell for cell in cells if cell.startswith("sjd"))
    cell = stride("show", run, name, "--json").document
    assert cell["meta"]["cell"] == name and cell["metrics"]["tau"] >= 1 and cell["depths"]
    text = stride("show", run, name)
    assert text.code == 0 and "acceptance by depth" in text.out
    document = stride("show", run, name, "--prompt", "tabular/1", "--json").document
    (sample,) = document["samples"]
    assert sample["status"] == "ok" and all(isinstance(token, int) for token in sample["tokens"])
    assert sum(step["emitted"] - step["overshoot"] for step in document["steps"]) == len(sample["tokens"])
    assert sample["text"] in stride("show", run, name, "--prompt", "tabular/1").out


def test_outputs_that_look_like_markup_are_printed_verbatim(tmp_path):
    """A model's text is no formatting: ``[/b]`` closes nothing, and ``[red]`` is no colour."""
    meta = {"label": "sjd", "backbone": "b", "dtype": "fp32", "task": "t", "method": "sjd", "status": "done"}
    store = Store.create(tmp_path / "run", {"key": {}, "cells": {"one": meta}, "provenance": {}})
    store.write("one", Record(Sample("p[/q]", 0, False, "failed", error="KeyError: x[/i] [red]"), ()))
    store.write("one", Record(Sample("p", 0, False, "ok", text="a[/b] [red]c"), ()))
    store.seal("one", CellMeta.read(meta))
    result = stride("show", tmp_path / "run", "one")
    assert result.code == 0
    assert "a[/b] [red]c" in result.out and "x[/i] [red]" in result.out


def test_doctor_lists_machine_versions_and_checks():
    result = stride("doctor", "--json")
    assert result.code in (0, 1)
    document = result.document
    assert set(document) == {"answer", "machine", "versions", "checks"}
    checks = {check["what"]: check for check in document["checks"]}
    assert checks["registries"]["ok"] and "tabular" in checks["backbones"]["found"]
    assert checks["weights"]["ok"] or "; stride fetch NAME" in checks["weights"]["found"]


def test_doctor_reports_presets_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path / "absent"))
    result = stride("doctor", "--json")
    checks = {check["what"]: check for check in result.document["checks"]}
    assert result.code == 1 and "STRIDE_PRESETS" in checks["backbones"]["found"] and "git" in checks
    assert result.document["answer"].startswith("quick will not run: backbones: ")


def test_doctor_begins_with_whether_quick_will_run():
    good = Check(what="registries", ok=True, found="25 methods", level="note")
    assert re.fullmatch(r"quick will run: \d+ cells in (bf16|fp32), about .* on a CPU.*", answer([good]))
    full = Check(what="disk at the cache", ok=False, found="0.1 GB free", level="error")
    assert answer([good, full]) == "quick will not run: disk at the cache: 0.1 GB free"
    out = stride("doctor").out
    assert out.splitlines()[0] in (answer([good]), answer([good, full])) and "registries" in out


@pytest.mark.slow
def test_verify_gives_the_promised_fields():
    result = stride("verify", "prompt_lookup", "--quick", "--json")
    assert result.code == 0
    mutants = [row for row in result.document if row.get("mutant")]
    for row in result.document[: -len(mutants)]:
        assert set(row) >= {"method", "params", "claim", "total_variation", "verdict", "planted"}
        assert row["verdict"] == "exact" and row["total_variation"] < 1e-12 and row["planted"] is True
    assert [row["why"] for row in mutants] == [mutant.why for mutant in mutants_of("prompt_lookup")]
    for row in mutants:
        assert set(row) == {"mutant", "method", "why", "where", "case", "total_variation", "caught"}
        assert row["method"] == "prompt_lookup" and row["caught"] is True and row["total_variation"] > 1e-3


def test_verify_with_random_cases_is_replayed_by_its_seed():
    words = ("verify", "autoregressive", "prompt_lookup", "--random", 4, "--json")
    first, again, other = (stride(*words, "--seed", seed) for seed in (1, 1, 2))
    assert first.code == 0 and first.document == again.document != other.document
    assert sum(row["cases"] + len(row["left_out"]) for row in first.document) == 8
    assert {row["verdict"] for row in first.document if row["cases"]} == {"exact"}


def test_random_cases_print_a_table_and_the_seed():
    result = stride("verify", "autoregressive", "--random", 2, "--seed", 9)
    assert result.code == 0 and "random cases (seed 9)" in result.out and "2 of 2 cases" in result.out
    assert "--seed does not go with the file x.py" in refused("verify", "x.py", "--seed", 0)
    assert "in these cases, whose texts end at 12 tokens" in " ".join(result.out.split())
    assert stride("verify", "autoregressive", "--random", 2, "--budget", 1e-9).code == 4  # nothing was proved


@pytest.mark.slow
def test_verify_prints_strict_json_where_a_parameter_is_infinite():
    result = stride("verify", "sjdpp", "-p", "tau=inf", "-p", "window=3", "--quick", "--json")
    assert result.code == 0 and result.document[0]["verdict"] == "exact"


def test_verify_prints_its_table_and_how_many_laws_are_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    words = ("verify", "autoregressive", "--quick", "--processes", 1)
    first, second, fresh = (stride(*words, *more) for more in ((), (), ("--fresh",)))
    assert first.code == second.code == fresh.code == 0
    assert "exact" in first.out and "Noise floor" in first.out and "caught" in first.out
    said = [
        re.search(r"(\d+) distributions from the cache .* (\d+) enumerated", one.out.replace("\n", " "))
        for one in (first, second, fresh)
    ]
    counts = [tuple(map(int, one.groups())) for one in said if one]
    assert counts == [(0, counts[0][1]), (counts[0][1], 0), (0, counts[0][1])] and counts[0][1] > 10


@pytest.mark.slow
def test_verify_truncates_no_setting_or_verdict_on_a_narrow_terminal():
    shown = stride("verify", "sjd", "-p", "window=3", "--quick", columns=80).out
    assert re.search(r"^sjd window=3 +exact +\S+e-1\d ", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80


DECODED = ("run", "--method", "sjd", *SMALL, "--out")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN", "--out", "FILE/below"),
        ("report", "RUN", "--against", "RUN", "--out", "FILE/below"),
        ("gate", "make", "RUN", "--out", "FILE/below"),
        (*DECODED, "FILE"),
        (*DECODED, "FILE/below"),
        (*DECODED, "NEW", "--append", "NEW/history.jsonl"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_message(run, tmp_path, words):
    """A history too, before the run begins."""
    (tmp_path / "file").write_text("")
    places = {"RUN": run, "FILE": tmp_path / "file", "FILE/below": tmp_path / "file" / "below"}
    places |= {"NEW": tmp_path / "new", "NEW/history.jsonl": tmp_path / "absent" / "history.jsonl"}
    named = str(tmp_path / ("absent" if "--append" in words else "file"))
    assert named in refused(*(places.get(word, word) for word in words))
    assert not (tmp_path / "new" / "cells").exists()


def test_an_error_that_nothing_caught_is_shown_without_control_characters():
    program = (
        "import sys\nfrom stridebench.harness.cli import main\n"
        "def broken(**_): raise RuntimeError('\\x1b[31mred')\n"
        "main.stride.main = broken\nsys.argv = ['stride', 'run', 'x']\nmain.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("Traceback") and ended.stderr.endswith("RuntimeError: \\x1b[31mred\n")
    assert "\x1b" not in ended.stderr


def test_a_current_folder_that_is_gone_is_one_message(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert "the current folder was removed" in refused("list", "methods")


def test_a_library_without_room_is_out_of_memory(monkeypatch):
    def unmapped(**_):
        raise ImportError("libx.so: failed to map segment from shared object")

    monkeypatch.setattr(stride_group, "main", unmapped)
    assert "out of memory" in refused("report", "x", code=3)
