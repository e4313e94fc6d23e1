"""`import stridebench`: runs as frames, resumed by the command line and the other way round."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL.Image import Image

import stridebench as stridebench
from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import reader
from stridebench.reports.html.cell_facts import command_of
from tests.support import page_runs
from tests.support.cli import refused, stride
from tests.support.shape_checks import without_shape_checks

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "methods": "jacobi",
    "backbones": "tabular",
    "tasks": {"name": "tabular", "limit": 2},
    "max_new_tokens": 4,
    "temperature": [0, 1],
}
IN_PROCESS = """
import sys
import stridebench; stridebench.run
from stridebench.harness.cli.main import main
sys.argv = "stride run --method prompt_lookup --backbone tabular --task tabular --limit 1 --max-new-tokens 3".split()
sys.exit(main())
"""
PLAIN: dict[str, Any] = {**SMALL, "methods": "autoregressive", "temperature": 0}
"""One cell, of which no plot is drawn."""
SAME_OPTIONS = ("--method", "autoregressive", "--backbone", "tabular", "--task", "{name: tabular, limit: 2}")
SAME_OPTIONS += ("--max-new-tokens", "4", "-t", "0", "--set", "prove=false")


def decode(path: Path, **keys: Any) -> stridebench.StoredRun:
    with without_shape_checks():
        return stridebench.run(out=path, progress=False, **{**SMALL, "prove": False, **keys})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> stridebench.StoredRun:
    return decode(tmp_path_factory.mktemp("facade") / "run")


def test_the_table_has_a_row_for_each_cell_and_a_notebook_shows_it(finished):
    table = finished.table
    assert list(table["cell"]) == finished.cells
    assert {(row["label"], row["temperature"]) for _, row in table.iterrows()} >= {("jacobi", 0.0), ("jacobi", 1.0)}
    assert table["tau"].between(1, 4).all()
    page = finished._repr_html_()
    assert "<h4>tabular fp64, T = 1" in page and "<td>jacobi</td>" in page


def test_samples_and_steps_are_frames_with_the_cell_of_each_row(finished):
    samples, steps = finished.samples, finished.steps
    assert samples.columns[0] == steps.columns[0] == "cell"
    assert set(samples["cell"]) == set(steps["cell"]) == set(finished.cells)
    counted = samples[~samples["warmup"]]
    assert len(counted) == 2 * len(finished.cells)
    emitted = steps[~steps["warmup"]].groupby("cell")[["emitted", "overshoot"]].sum()
    lengths = counted.assign(length=counted["tokens"].map(len)).groupby("cell")["length"].sum()
    pd.testing.assert_series_equal(emitted["emitted"] - emitted["overshoot"], lengths, check_names=False)


def lose_the_cell(path: Path) -> str:
    (cell,) = Store.open(path).cells()
    shutil.rmtree(path / "cells" / cell)
    return cell


@pytest.mark.parametrize("options", [SAME_OPTIONS, ()], ids=["named", "of the run"])
def test_the_command_line_continues_a_run_of_a_notebook(options, tmp_path):
    stored = decode(tmp_path / "run", **PLAIN)
    before = stored.samples["sha256"].tolist()
    cell = lose_the_cell(stored.path)
    again = stride("run", *options, "--out", stored.path, "--resume", "--json")
    assert again.code == 0 and again.document["done"] == 1, again
    (resumed,) = stridebench.open_runs(stored.path)
    assert (resumed.cells, resumed.samples["sha256"].tolist()) == ([cell], before)


def test_a_notebook_continues_a_run_of_the_command_line(tmp_path):
    path = tmp_path / "run"
    assert stride("run", *SAME_OPTIONS, "--out", path).code == 0
    cell = lose_the_cell(path)
    resumed = stridebench.run(out=path, resume=True, progress=False)
    assert resumed.cells == [cell] and list(resumed.table["cell"]) == [cell]
    with pytest.raises(StoreError, match="another run"):
        decode(path, resume=True, **{**PLAIN, "seed": 1})


def test_a_resume_without_a_suite_needs_a_run(tmp_path):
    assert "holds no run" in refused("run", "--resume", "--out", str(tmp_path))
    assert "name a suite" in refused("run", "--resume")
    assert "name a suite" in refused("run", "--out", str(tmp_path))


def test_a_run_of_another_number_of_threads_is_refused_with_that_number(tmp_path):
    path, threads = tmp_path / "run", torch.get_num_threads()
    decode(path, **PLAIN)
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(StoreError, match=f"the machine's threads: {threads} there, {threads + 1} here"):
            decode(path, resume=True, **PLAIN)
    finally:
        torch.set_num_threads(threads)


def test_a_run_that_ended_is_unlocked_while_python_still_runs(finished):
    code = "import sys, pathlib, stridebench.harness.record.files as files; files.lock(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(finished.path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_prompts_may_be_a_list_which_a_resume_finds_again(tmp_path, monkeypatch):
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(UsageError, match="the backbone has no tokenizer"):
            stridebench.run(
                backbones="tabular", prompts=["hello", {"id": "two", "prompt": "bye"}], out=tmp_path / "run"
            )
    (file,) = (tmp_path / "cache" / "prompts").iterdir()
    assert file.read_text() == '{"prompt": "hello"}\n{"id": "two", "prompt": "bye"}\n'


TABULAR = {"methods": "jacobi", "backbones": "tabular", "tasks": "tabular"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({**TABULAR, "limit": 0}, "limit: limit is 0"),
        ({**TABULAR, "dtype": "fp31"}, "dtype: "),
        ({**TABULAR, "methods": "jacoby"}, "did you mean 'jacobi'"),
        ({"method": "jacobi"}, "no argument 'method'; did you mean 'methods'"),
        ({"backbones": "tabular"}, "or give methods, tasks too"),
        ({"suite": "quik"}, "did you mean 'quick'"),
        ({"backbones": "tabular", "prompts": "two words"}, r"for one text write \['two words'\]"),
        ({"backbones": "tabular", "prompts": []}, r"a list of texts or of rows; found \[\]"),
        ({"backbones": "tabular", "prompts": ["a", 3]}, "a list of texts or of rows; found 3"),
        ({"prompts": "mine.txt", "tasks": "tabular"}, "give them or tasks, not both"),
        (
            {"backbones": "tabular", "prompts": "mine.txt"},
            "nothing to run; autoregressive: the backbone has no tokenizer",
        ),
    ],
)
def test_what_is_wrong_is_an_error_of_the_package_that_names_arguments_and_no_options(
    keys: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("hello\n")
    with pytest.raises(UsageError, match=message) as error:
        stridebench.run(out=tmp_path / "run", **keys)
    assert "--" not in str(error.value) and not (tmp_path / "run").exists()


def test_open_runs_finds_the_runs_of_a_folder(finished, tmp_path):
    assert [run.path for run in stridebench.open_runs(finished.path)] == [finished.path]
    assert [run.path for run in stridebench.open_runs(finished.path.parent)] == [finished.path]
    with pytest.raises(StoreError, match="holds no run"):
        stridebench.open_runs(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        stridebench.open_runs(tmp_path / "nowhere")


def test_a_run_has_its_cells_by_their_labels(finished):
    run = stridebench.open_run(finished.path)
    assert [cell.name for cell in run] == run.cells and len(run) == len(run.cells) and run
    name = run.cells[-1]
    cell = run[name]
    assert cell.name == name and cell.row["cell"] == name and (~cell.samples["warmup"]).sum() == cell.row["n_run"]
    label = f"{cell.row['label']} T={cell.row['temperature']:g}"
    assert run[label].name == name and repr(cell) == f"RunCell({name!r}): {cell.row['verdict']}"
    with pytest.raises(UsageError, match="there is no cell 'nothing'"):
        run["nothing"]
    assert r"\label{tab:x}" in run.to_latex(["verdict", "speedup"], "tab:x") and "<table" in run.to_html()
    with pytest.raises(UsageError, match="no column 'x'; known: "):
        run.to_latex(["x"])


def test_a_run_is_tidy_plots_its_methods_and_gives_outputs(finished):
    tidy = finished.tidy()
    one = tidy[(tidy["cell"] == finished.cells[-1]) & (tidy["metric"] == "tau")].iloc[0]
    row = finished.table[finished.table["cell"] == finished.cells[-1]].iloc[0]
    assert one["value"] == row["tau"] and one["label"] == row["label"] and len(tidy) == len(tidy.drop_duplicates())
    assert not {"tau_low", "tau_n"} & set(tidy["metric"]) and set(tidy["cell"]) == set(finished.cells)
    assert finished.plot.forest().get_axes() and finished.plot.pareto() is None
    outputs = finished[finished.cells[-1]].outputs
    assert len(outputs) == 2 and all(isinstance(text, str) for text in outputs)


def test_pictures_of_a_run_are_those_of_pil(tmp_path):
    outputs = stridebench.open_run(page_runs.with_outputs(tmp_path / "run").path)["meshes"].outputs
    assert isinstance(outputs.iloc[0], Mesh)
    pictures = stridebench.open_run(tmp_path / "run")["pictures"]
    with pytest.raises(StoreError, match="lies outside the run"):
        _ = pictures.outputs  # its second sample names a file elsewhere
    (picture,) = replace(pictures, samples=pictures.samples.head(1)).outputs
    assert isinstance(picture, Image) and picture.size == (12, 8)


def test_methods_are_a_frame():
    methods = stridebench.list_methods().set_index("name")
    assert methods.loc["speculative", "claim"] == "SAME_LAW" and methods.loc["sjd", "params"]["window"] == 16
    assert list(methods.index) == [row["name"] for row in stride("list", "methods", "--json").document]


def test_the_command_of_a_cell_plans_that_cell(finished):
    read = reader(Store.open(finished.path))
    for cell in finished:
        if cell.row["role"] == "method":
            words = shlex.split(command_of(read(cell.name)))[1:]
            planned = stride(*words, "--set", "prove=false", "--dry-run", "--json").document
            assert cell.name in [one["cell"] for one in planned["cells"]]


def test_verify_gives_a_row_a_setting():
    with without_shape_checks():
        frame = stridebench.verify("sjdpp", quick=True, reuse="M", window=2)
    assert frame.loc[0, ["method", "verdict", "claim"]].tolist() == ["sjdpp", "exact", "SAME_LAW"]
    assert frame.loc[0, "total_variation"] < 1e-12
    with pytest.raises(UsageError, match="no parameter 'windw'; did you mean 'window'"):
        stridebench.verify("sjdpp", windw=2)
    with pytest.raises(UsageError, match="window are parameters of one method"):
        stridebench.verify(window=2)


def test_audit_gives_a_row_for_each_sampled_cell(finished):
    frame = stridebench.audit(finished)
    assert set(frame["verdict"]) <= {"not refuted", "inconclusive"} and (frame["tokens"] == 8).all()
    assert set(frame["cell"]) == set(finished.table.loc[finished.table["temperature"] == 1, "cell"])


@pytest.mark.slow
def test_files_of_the_user_with_the_names_of_our_folders_are_never_imported(tmp_path):
    for name in ("harness", "methods", "tasks", "reports"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user was imported')\n")
    done = subprocess.run([sys.executable, "-c", IN_PROCESS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_gate_and_compare_say_the_same_as_the_command_line(finished, tmp_path):
    baseline = tmp_path / "baseline.json"
    assert stride("gate", "make", finished.path, "--out", baseline).code == 0
    result = stridebench.gate(finished, baseline)
    printed = stride("gate", "check", finished.path, "--baseline", baseline, "--json")
    assert (result.verdict, result.exit_code) == (printed.document["verdict"], printed.code)
    assert [row.why for row in result.rows] == [row["why"] for row in printed.document["rows"]]
    compared = stride("report", finished.path, "--against", finished.path, "--json").document
    assert len(stridebench.compare(finished, finished.path).frame) == len(compared["rows"]) > 0
    with pytest.raises(UsageError, match="needs two runs or more"):
        stridebench.compare(finished)


AUDITS: list[tuple[dict[str, Any], str]] = [
    ({"tokens": "served.jsonl", "backbone": "tabular"}, "tokens need temperature"),
    ({"tokens": "served.jsonl", "backbone": "tabular", "temperature": 0.0}, "at 0 nothing is drawn"),
    ({"tokens": "served.jsonl", "bakbone": "tabular"}, "no argument 'bakbone'"),
    ({"run": ".", "temperature": 1.0}, "temperature go with tokens"),
    ({}, "name a run, or a file of tokens"),
]


def test_audit_of_a_file_gives_one_row_and_needs_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("served.jsonl").write_text('{"prompt_ids": [1, 2], "output_ids": [1, 0, 2]}\n')
    (row,) = stridebench.audit(tokens="served.jsonl", backbone="tabular", temperature=1.0).to_dict("records")
    assert row["tokens"] == 3 and row["tokens_file"] == "served.jsonl" and row["verdict"] == "inconclusive"
    for keys, message in AUDITS:
        with pytest.raises(UsageError, match=message):
            stridebench.audit(**keys)
