"""Gates of runs at a URL; what must lie on this machine says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import stride
from tests.support.s3_server import s3_server

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
