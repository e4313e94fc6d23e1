"""A night from end to end: run, gate and history with one exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stridebench.harness.cli.nightly import worst_code
from tests.support.cli import refused, stride
from tests.support.nights import line, noisy, write
from tests.support.s3_server import s3_server

SUITE = """\
methods: [{name: speculative, drafter: "self:layers=1", gamma: 3}]
backbones: [tabular]
tasks: [{name: tabular, prompts_count: 24}]
warmup: 0
temperature: 1
max_new_tokens: 12
prove: false
"""


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((0, 4), 4), ((1, 4), 1), ((3, 1), 3), ((3, 2), 2), ((1, 2), 2)]
)
def test_the_worst_exit_code_counts(codes: tuple[int, int], code: int) -> None:
    assert worst_code(*codes) == code


@pytest.mark.slow
def test_two_equal_nights_pass_and_a_changed_verdict_fails(tmp_path, monkeypatch):
    (tmp_path / "toy.yaml").write_text(SUITE)
    words = ("gate", "nightly", tmp_path / "toy.yaml", "--history", tmp_path / "nights", "--reruns", 1)
    clock = iter(range(100))
    monkeypatch.setattr("stridebench.harness.cli.nightly.stamp", lambda: f"night-{next(clock)}")
    first = stride(*words, "--json")
    assert (first.code, first.document["gate"]) == (0, None), first
    assert json.loads((tmp_path / "nights" / "baseline.json").read_text())["reruns"] == 1
    assert sorted(path.name for path in (tmp_path / "nights" / "runs").iterdir()) == ["night-0", "night-0-again1"]
    second = stride(*words)
    assert second.code == 0 and second.out.startswith("pass: ") and "| ---" not in second.out, second
    assert len((tmp_path / "nights" / "history.jsonl").read_text().splitlines()) == 6
    path = tmp_path / "nights" / "baseline.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema": 99}))
    assert "gate make" in refused(*words)
    assert stride("gate", "history", tmp_path / "nights").code == 0
    assert (tmp_path / "nights" / "history.png").is_file()


@pytest.mark.parametrize("options", [["quick"], ["nightly", "--budget", "5m"], ["nightly", "--budget=5m"]])
def test_runs_that_are_compared_have_no_budget_and_no_other_folder(tmp_path, options):
    assert "--out is set by the night" in refused("gate", "nightly", "quick", "--history", tmp_path, "--out", "x")
    words = "need the same prompts, and a budget chooses others each time; give --limit"
    assert words in refused("gate", "nightly", *options, "--history", tmp_path / "nights")
    assert words in refused("gate", "ab", ".", ".", *options) and not (tmp_path / "nights").exists()


def test_history_prints_changes_as_json_and_as_a_table(tmp_path):
    values = noisy(50, 3, step=-0.04)
    write(tmp_path / "history.jsonl", [line(night, value) for night, value in enumerate(values)])
    (one,) = stride("gate", "history", tmp_path, "--json").document["series"]
    assert len(one["changes"]) == 1 and one["changes"][0]["relative"] < -0.02
    page = stride("gate", "history", tmp_path, "--metric", "acceptance", "--out", tmp_path / "pages")
    assert page.code == 0 and "eagle2" in page.out and "| ---" not in page.out
    assert (tmp_path / "pages" / "history.md").read_text().startswith("# History\n\n| cell | setting |")
    summary = stride("gate", "history", tmp_path, "--summary").out
    assert summary.startswith("1 of ") and "T = " in summary and "eagle2" in summary and summary.count("\n") == 1
    none = stride("gate", "history", tmp_path, "--metric", "scr", "--json")
    assert (none.code, none.document) == (4, {"series": []})
    assert "no metric 'acceptence'; there are scr, " in refused("gate", "history", tmp_path, "--metric", "acceptence")


@pytest.mark.parametrize(("values", "code"), [([0.6], 0), ([float("nan")] * 9, 4)], ids=["one night", "NaN"])
def test_a_history_that_can_show_no_change_is_inconclusive(values: list[float], code: int, tmp_path):
    """A history that began tonight is no failure of a workflow."""
    write(tmp_path / "history.jsonl", [line(night, value) for night, value in enumerate(values)])
    page = stride("gate", "history", tmp_path)
    assert page.code == code and "Inconclusive" in page.out, page


@pytest.mark.parametrize(
    ("name", "text"),
    [("history.jsonl", '{"cell": "c0", "crea'), ("baseline.json", '{"kind": 1}'), ("baseline.json", "{")],
    ids=["half a line", "no baseline", "half a baseline"],
)
def test_damage_of_a_history_is_told_before_the_night_runs(name: str, text: str, tmp_path):
    (tmp_path / "toy.yaml").write_text(SUITE)
    (tmp_path / name).write_text(text)
    message = refused("gate", "nightly", tmp_path / "toy.yaml", "--history", tmp_path)
    assert name in message or "gate make" in message
    assert not (tmp_path / "runs").exists() and (tmp_path / name).read_text() == text


def test_a_history_that_is_not_there_is_one_message(tmp_path):
    assert "holds no history" in refused("gate", "history", tmp_path)


RUN = (
    *("run", "--method", '{name: speculative, drafter: "self:layers=1", gamma: 3}', "--backbone", "tabular"),
    *("--task", "{name: tabular, limit: 6}", "-t", 1, "--max-new-tokens", 6),
    *("--set", "prove=false", "--set", "warmup=0", "--json"),
)


@pytest.mark.slow
def test_a_run_at_a_url_is_gated_and_the_table_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("stridebench.reports.run_report.RunReport.write", lambda report, folder: [])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "for-the-test")
    with s3_server() as objects:
        url, baseline = objects.url("bucket/run"), tmp_path / "baseline.json"
        assert stride(*RUN, "--out", url).code == 0
        assert stride("gate", "make", url, "--out", baseline).code == 0
        result = stride("gate", "check", url, "--baseline", baseline)
        assert result.code == 4 and result.out.startswith("inconclusive: "), result  # of two prompts no drop would show
        assert objects.there["bucket/run/gate/gate.md"].startswith(b"# Gate: inconclusive")
        assert b"<testsuite" in objects.there["bucket/run/gate/gate.xml"]


LOCAL = {
    "a baseline to write": ("gate", "make", "runs/x", "--out", "s3://bucket/baseline.json"),
    "a baseline to read": ("gate", "check", "runs/x", "--baseline", "s3://bucket/baseline.json"),
    "a history of nights": ("gate", "nightly", "quick", "--history", "s3://bucket/nights"),
    "a history to show": ("gate", "history", "s3://bucket/nights"),
    "the runs of a comparison": ("gate", "ab", "a", "b", "quick", "--out", "s3://bucket/ab"),
}


@pytest.mark.parametrize("case", LOCAL)
def test_what_is_no_run_lies_on_this_machine(case: str) -> None:
    outcome = stride(*LOCAL[case])
    assert outcome.code == 2 and "is a URL, and only runs can lie at one" in outcome.err
