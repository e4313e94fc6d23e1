"""Runs with outputs other than text: files, scores of sets, malformed outputs, and suites that mix modalities."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from stridebench.harness.cli.run_plan import next_steps, shortest_name
from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import Picture, load
from stridebench.harness.record.store import Store
from stridebench.tasks.digits import DigitPictures
from tests.support.cli import refused, stride

DIGITS = ("--backbone", "embedded-digits-s", "--task", "{name: digits, limit: 2}", "--max-new-tokens", 64, "-t", 1)
QUICK = ("--set", "prove=false", "--set", "warmup=0")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "run"
    result = stride("run", "--method", "{name: sjd, window: 4}", *DIGITS, *QUICK, "--out", path)
    assert result.code == 0, result
    return path, result.out


def cells(path):
    store = Store.open(path)
    return store, [store.cell(name) for name in store.cells()]


@pytest.mark.slow
def test_each_picture_lies_at_the_path_of_its_sample(run):
    store, cell_list = cells(run[0])
    for cell in cell_list:
        assert len(set(cell.samples["output"])) == 2
        for name in cell.samples["output"]:
            assert isinstance(load(store.path / name), Picture)


def test_the_encoder_is_timed_separately_and_scores_are_stored(run):
    _, cell_list = cells(run[0])
    for cell in cell_list:
        assert (cell.samples["open_ns"] > 0).all()
        assert all(set(json.loads(scores)) == {"named"} for scores in cell.samples["scores"])


def test_the_report_has_a_contact_sheet(run):
    sheets = list((run[0] / "report").glob("outputs-*.png"))
    assert len(sheets) == 1 and str(sheets[0]) in run[1].replace("\n", "")
    import matplotlib.image

    picture = matplotlib.image.imread(sheets[0])
    assert picture.shape[0] > 200 and picture.shape[1] > 200 and picture[..., :3].std() > 0.05


def test_an_unfinished_picture_is_neither_drawn_nor_scored(tmp_path):
    words = [*DIGITS[:5], 8, "-t", 1]
    result = stride("run", "--method", "jacobi", *words, *QUICK, "--out", tmp_path / "r")
    assert result.code == 0, result
    for cell in cells(tmp_path / "r")[1]:
        assert set(cell.samples["output"]) == {""} and set(cell.samples["scores"]) == {"{}"}


def test_a_malformed_output_is_counted_as_a_failed_sample(tmp_path, monkeypatch):
    def refuse(self, prompt, output, tokens):
        raise OutputError("a hole in the picture")

    monkeypatch.setattr(DigitPictures, "score", refuse)
    result = stride("run", "--method", "jacobi", *DIGITS, *QUICK, "--out", tmp_path / "r", "--json")
    assert result.code == 0 and (result.document["failed"], result.document["malformed"]) == (0, 6)
    for cell in cells(tmp_path / "r")[1]:
        assert set(cell.samples["error"]) == {"output: a hole in the picture"}
        assert all(len(tokens) == 64 for tokens in cell.samples["tokens"])


@pytest.mark.slow
def test_scores_of_sets_reach_the_table_with_their_failures(tmp_path, monkeypatch):
    def score_set(self, outputs):
        ids = sorted((one.prompt.id, one.repetition) for one in outputs)
        assert ids == [("digits/0", 0), ("digits/1", 0)] and all(isinstance(o.output, Picture) for o in outputs)
        return {"spread": SetScore(0.25, len(outputs), low=0.125, high=0.5), "fid": SetScore(None, 2, reason="no net")}

    monkeypatch.setattr(DigitPictures, "set_metrics", ("spread", "fid"))
    monkeypatch.setattr(DigitPictures, "score_set", score_set)
    path = tmp_path / "r"
    assert stride("run", "--method", "jacobi", *DIGITS, *QUICK, "--out", path).code == 0
    table = (path / "report" / "summary.md").read_text()
    assert "0.25 [0.12, 0.50]" in table and "fid not measured: no net" in table
    set_scores = cells(path)[1][0].meta.set_scores
    assert set_scores["spread"].failures == 0 and set_scores["fid"].value is None


@pytest.mark.slow
def test_a_failing_scorer_of_sets_leaves_a_reason_and_ends_the_finished_run_with_one(tmp_path, monkeypatch):
    monkeypatch.setattr(DigitPictures, "set_metrics", ("spread",))
    monkeypatch.setattr(DigitPictures, "score_set", lambda self, outputs: 1 / 0)
    result = stride("run", "--method", "jacobi", *DIGITS, *QUICK, "--out", tmp_path / "r")
    assert result.code == 1 and "scoring: ZeroDivisionError" in result.out
    assert "ZeroDivisionError" in cells(tmp_path / "r")[1][0].meta.set_scores["spread"].reason


def test_an_unknown_word_fails_its_sample_with_the_reason(tmp_path):
    words = ("--backbone", "embedded-digits-s", "--task", "{name: emoji_scenes, limit: 1}", "--max-new-tokens", 64)
    result = stride("run", "--method", "jacobi", *words, *QUICK, "--out", tmp_path / "r")
    assert result.code == 1
    errors = {error for cell in cells(tmp_path / "r")[1] for error in cell.samples["error"]}
    assert len(errors) == 1 and "UsageError" in errors.pop()


def test_text_prompts_on_a_picture_backbone_are_refused_before_the_run():
    message = refused("run", "--method", "jacobi", "--backbone", "embedded-digits-s", "--task", "continuation")
    assert "nothing to run" in message and "makes image" in message


REMOVED = {
    "a record": (lambda path: next((path / "records").glob("*/*.json")).unlink(), "3 of 4 decodes"),
    "the run": (shutil.rmtree, "holds no run any more"),
}


@pytest.mark.parametrize(("remove", "words"), REMOVED.values(), ids=REMOVED)
def test_a_run_whose_folder_is_removed_ends_with_its_reason(tmp_path, monkeypatch, remove, words):
    """The third decode is followed by the removal, and the fourth is the last one of its cell."""
    path, write, written = tmp_path / "r", Store.write, []

    def removing(store, cell, record):
        write(store, cell, record)
        written.append(cell)
        if len(written) == 3:
            remove(path)

    monkeypatch.setattr(Store, "write", removing)
    run = ("--method", "jacobi", "--backbone", "tabular", "--task", "{name: tabular, limit: 4}", "-t", 1)
    outcome = stride("run", *run, "--max-new-tokens", 4, *QUICK, "--out", path)
    assert outcome.code == 3 and words in outcome.err.splitlines()[-1] and "Traceback" not in outcome.err
    if words != "holds no run any more":
        monkeypatch.setattr(Store, "write", write)
        assert stride("run", *run, "--max-new-tokens", 4, *QUICK, "--out", path, "--resume").code == 0
        store = Store.open(path)
        assert {len(store.cell(name).samples) for name in store.cells()} == {4}


ROW = {"status": "done", "role": "method", "cell": "sjd.tabular.T1-1", "method": "sjd", "temperature": 1.0}


def test_the_next_commands_name_a_cell_and_a_method_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = next_steps(pd.DataFrame([ROW]), str(tmp_path / "runs" / "a b"))
    commands = [line.split("    ")[0].strip() for line in lines]
    assert commands == [
        "next:",
        "stride show 'runs/a b' sjd",
        "stride report 'runs/a b'",
        "stride audit 'runs/a b'",
        "stride verify sjd",
    ]


def test_a_greedy_run_of_baselines_has_nothing_to_audit_or_verify() -> None:
    frame = pd.DataFrame([{**ROW, "role": "baseline", "temperature": 0.0}])
    assert [line.split()[1] for line in next_steps(frame, "/elsewhere/run")[1:]] == ["show", "report"]


def test_a_cell_is_named_by_as_few_words_as_no_other_cell_has() -> None:
    cells = ["sjd.image.T1-a", "sjd.image.T0-b", "sjdpp.image.T1-c"]
    assert [shortest_name(cell, cells) for cell in cells] == ["sjd.image.T1-a", "sjd.image.T0-b", "sjdpp"]
