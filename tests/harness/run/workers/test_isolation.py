"""Methods that end or hold up their process fail their own cells, and no others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stridebench.harness.errors import RunIncomplete
from stridebench.harness.record.run_notes import RunNotes
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS, TASKS
from stridebench.harness.run.workers import isolation, process, protocol
from tests.support.cli import Outcome, stride
from tests.support.faulty_methods import ChangesWeights
from tests.support.one_by_one import OneByOne, register
from tests.support.runs import by_label, counted

PLUGIN = Path(__file__).resolve().parents[3] / "plugins" / "bad_day"
WORDS = ("--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "--max-new-tokens", 4, "--json")
UNPROVED = ("--set", "isolation=process", "--set", "prove=false")
JACOBI = ("--method", "jacobi", *UNPROVED)


@pytest.fixture()
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plugin, installed in a folder on the path; its file of starts."""
    folder, project = tmp_path / "site", tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = folder / "stride_bad_day-1.0.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(PLUGIN / "stride_bad_day.py", folder)
    points = (
        f"[{group}]\n{name} = {value}\n" for group, p in project["entry-points"].items() for name, value in p.items()
    )
    (info / "entry_points.txt").write_text("".join(points))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    monkeypatch.syspath_prepend(folder)
    for registry in (METHODS, TASKS):
        for name in ("_items", "_source", "_broken"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
        monkeypatch.setattr(registry, "_plugins", set())
        monkeypatch.setattr(registry, "_loaded", False)
    starts = tmp_path / "starts"
    monkeypatch.setenv("BAD_DAY_STARTS", str(starts))
    return starts


def bad_day(fault: str, proof: bool = False) -> tuple[str, str]:
    return "--method", f"{{name: bad_day, fault: {fault}, proof: {str(proof).lower()}}}"


def cell_of(cells: dict[str, Any], fault: str) -> Any:
    (cell,) = [cell for cell in cells.values() if cell.meta.params.get("fault") == fault]
    return cell


def columns(cell: Any) -> Any:
    """What does not depend on the time that a decode takes."""
    return [tuple(map(str, row)) for row in counted(cell)[["status", "tokens", "agreement", "logprobs"]].values]


ENDINGS = {"exit": "exit code 0", "kill": "SIGKILL", "hang": "passed the limit of 5 s"}
ENDINGS |= {"close_files": "process (?:closed its connection|ended with exit code 1)"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [pytest.param({}, id="one"), pytest.param(ENDINGS, id="all", marks=pytest.mark.faults)]
)
def test_what_ends_a_plugins_process_fails_its_cells_alone(tmp_path: Path, plugin: Path, more: dict[str, str]) -> None:
    reasons = {"segfault": "SIGSEGV", **more}
    methods = [word for fault in (*reasons, "interrupt", "none") for word in bad_day(fault)]
    limits = ("--set", "sample_limit_s=5")
    outcome = stride("run", "--method", "sjd", *methods, *WORDS, *limits, "--out", tmp_path / "run")
    cells = by_label(Store.open(tmp_path / "run"))
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (
        1,
        4 + len(reasons),
        2 * len(reasons) + 2,
    )
    for fault, reason in reasons.items():
        cell = cell_of(cells, fault)
        assert counted(cell)["error"].str.contains(reason).all(), counted(cell)["error"].tolist()
        assert cell.meta.verdict.word is None
    starts = Counter(plugin.read_text().split())
    assert {fault: starts[fault] for fault in reasons} == dict.fromkeys(reasons, 1)  # the warm-up; no decode after it
    interrupted = counted(cell_of(cells, "interrupt"))["error"].tolist()
    assert all(error.startswith("KeyboardInterrupt") for error in interrupted), interrupted
    assert "Traceback" not in outcome.err and ("maybe because a plugin closed it" in outcome.err) == bool(more)
    error = counted(cell_of(cells, "segfault"))["error"].iloc[0]
    log = tmp_path / "run" / error.partition("see ")[2].partition(" in the run")[0]
    assert "Fatal Python error: Segmentation fault" in log.read_text()
    assert "stride_bad_day.py" in log.read_text()
    assert not list((tmp_path / "run" / "started").iterdir())

    healthy = cell_of(cells, "none")
    assert healthy.meta.verdict.word == "exact"
    alone = ("--method", "sjd", *bad_day("none"), *WORDS, "--set", "isolation=none", "--out", tmp_path / "alone")
    assert stride("run", *alone).code == 0
    for name, cell in by_label(Store.open(tmp_path / "alone")).items():
        assert columns(cell) == columns(cells[name])
        assert cell.meta.verdict == cells[name].meta.verdict


@pytest.mark.faults
def test_a_cell_in_which_two_runs_ended_is_not_started_again(
    tmp_path: Path, plugin: Path, stride_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin kills the run itself, and its worker ends with it."""
    words = [str(word) for word in ("run", "--method", "sjd", *bad_day("kill_run"), *WORDS, "--out", tmp_path / "run")]
    site = os.pathsep.join([str(tmp_path / "site"), stride_env["PYTHONPATH"]])
    command = [sys.executable, "-c", "from stridebench.harness.cli.main import main; main()", *words]
    for again in ([], ["--resume"]):
        ended = subprocess.run([*command, *again], env={**stride_env, "PYTHONPATH": site}, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert plugin.read_text().split() == ["kill_run", "kill_run"]
    monkeypatch.setattr(isolation, "Worker", Refuses)
    outcome = stride(*words, "--resume")
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (1, 3, 2), outcome
    error = counted(cell_of(by_label(Store.open(tmp_path / "run")), "kill_run"))["error"].iloc[0]
    assert error == ("2 runs ended while this method warmed up on tabular/0 (repetition 0), so it is not started again")


class Refuses:
    """A worker that must not be started."""

    def __init__(self, setup: protocol.WorkerSetup, log: Path) -> None:
        raise AssertionError("a worker was started")


class InThisProcess:
    """A worker that answers in the process of the test."""

    ended = False

    def __init__(self, setup: protocol.WorkerSetup, log: Path) -> None:
        self.service = process.Service(process._load(setup))

    def ask(self, request: Any, limit: isolation.Limit | None) -> Any:
        return self.service.answer(request)

    def close(self) -> None:
        pass


def worker_that(monkeypatch: pytest.MonkeyPatch, acts: Callable[[Any, isolation.Limit | None], object]) -> None:
    """Let the runs of a test have workers in its process, and do something before each request is answered."""

    class Watched(InThisProcess):
        def ask(self, request: Any, limit: isolation.Limit | None) -> Any:
            acts(request, limit)
            return super().ask(request, limit)

    monkeypatch.setattr(isolation, "Worker", Watched)


def run(folder: Path, *words: object) -> tuple[Outcome, dict[str, Any]]:
    outcome = stride("run", *WORDS, "--out", folder, *words)
    return outcome, by_label(Store.open(folder))


class RunEnds(BaseException):
    """The run is killed: nothing of it goes on."""


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Kill the run at a worker's request of this number, as far as the store can tell: the mark stays."""
    asked: list[str] = []

    def kill(request: Any, limit: object) -> None:
        asked.append(request.cell)
        if len(asked) > number:
            monkeypatch.setattr(RunNotes, "unmark_started", lambda *_: None)
            monkeypatch.setattr(RunNotes, "mark_started", lambda *_: None)
            raise RunEnds

    worker_that(monkeypatch, kill)


@pytest.mark.parametrize(("requests", "failed"), [((0, 0), 2), ((1, 2), 1)])
def test_a_killed_run_starts_its_isolated_cell_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: tuple[int, int], failed: int
) -> None:
    """Requests are the warm-up and two prompts; what was answered before a kill is kept."""
    for index, request in enumerate(requests):
        with monkeypatch.context() as patch, pytest.raises(RunEnds):
            killed_at(patch, request)
            run(tmp_path / "run", *JACOBI, *(["--resume"] if index else []))
        notes = Store.open(tmp_path / "run").notes
        marks = [notes.started(path.stem) for path in (tmp_path / "run" / "started").iterdir()]
        assert [mark and mark.runs for mark in marks] == [index + 1]
    monkeypatch.setattr(isolation, "Worker", Refuses)
    outcome, cells = run(tmp_path / "run", *JACOBI, "--resume")
    assert (outcome.code, outcome.document["failed"]) == (1, failed)
    assert counted(cells["jacobi T=0"])["error"].dropna().str.startswith("2 runs ended while this method").all()


def test_a_run_that_was_killed_once_ends_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(RunEnds):
        killed_at(patch, 1)
        run(tmp_path / "run", *JACOBI)
    monkeypatch.setattr(isolation, "Worker", InThisProcess)
    outcome, cells = run(tmp_path / "run", *JACOBI, "--resume")
    assert (outcome.code, outcome.document["failed"]) == (0, 0)
    assert not list((tmp_path / "run" / "started").iterdir())
    _, others = run(tmp_path / "alone", *JACOBI)
    assert columns(cells["jacobi T=0"]) == columns(others["jacobi T=0"])


def test_isolated_cells_decode_and_prove_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "Worker", InThisProcess)
    register(monkeypatch, METHODS, "one_by_one", OneByOne)
    words = ("--method", "one_by_one", "--batch", 2, "-t", 1)
    outcome, cells = run(tmp_path / "isolated", *words, "--set", "isolation=process")
    assert outcome.code == 0
    _, others = run(tmp_path / "run", *words)
    assert cells.keys() == others.keys()
    for name, cell in cells.items():
        assert columns(cell) == columns(others[name])
        assert cell.meta.verdict == others[name].meta.verdict
        assert list(cell.samples["warmup"]) == list(others[name].samples["warmup"])


def test_a_method_that_changes_the_weights_of_its_process_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own figures rest on the changed weights; those of the run's process tell."""
    monkeypatch.setattr(isolation, "Worker", InThisProcess)
    register(monkeypatch, METHODS, "changes_weights", ChangesWeights)
    register(monkeypatch, METHODS, "one_by_one", OneByOne)
    words = ("--backbone", "random-llama-1m", "--set", "isolation=process", "--set", "prove=false", "-t", 1)
    _, honest = run(tmp_path / "honest", "--method", "one_by_one", *words)
    assert honest["one_by_one T=1"].meta.verdict.word != "broken"
    _, cells = run(tmp_path / "run", "--method", "changes_weights", *words)
    verdict = cells["changes_weights T=1"].meta.verdict
    assert verdict.word == "broken" and "the method changed the target in its process" in verdict.note


def test_a_worker_that_ends_during_a_proof_leaves_the_samples_and_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs: list[str] = []

    def end(request: Any, limit: object) -> None:
        if isinstance(request, protocol.ProveRequest) and "jacobi" in request.cell:
            proofs.append(request.cell)
            raise isolation.WorkerEnded("ended with SIGSEGV")

    worker_that(monkeypatch, end)
    register(monkeypatch, METHODS, "one_by_one", OneByOne)
    methods = ("--method", "jacobi", "--method", "one_by_one", "-t", 0, "-t", 1)
    outcome, cells = run(tmp_path / "run", *methods, "--set", "isolation=process")
    assert (outcome.code, outcome.document["failed"]) == (1, 0)
    assert len(proofs) == 1  # the proof is of the method, whatever the temperature
    for name in ("jacobi T=0", "jacobi T=1"):
        verdict = cells[name].meta.verdict
        assert verdict.word == "unverified"
        assert "its process ended with SIGSEGV while it proved its claim" in verdict.error
    assert cells["one_by_one T=0"].meta.verdict.word == "exact"


def test_a_cell_over_its_limit_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[isolation.Limit | None] = []
    worker_that(monkeypatch, lambda request, limit: limits.append(limit))
    words = ("--method", "jacobi", "--set", "isolation=process", "--set", "cell_limit_s=1e-6")
    outcome, cells = run(tmp_path / "run", *words)
    assert (outcome.code, outcome.document["failed"]) == (1, 2)
    assert set(counted(cells["jacobi T=0"])["error"]) == {
        "its cell passed the limit of 1e-06 s a cell (cell_limit_s) before it decoded tabular/0 (repetition 0)"
    }
    assert limits == [isolation.Limit(1e-6, "1e-06 s a cell (cell_limit_s)")]


def test_a_limit_is_of_each_sample_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[isolation.Limit | None] = []
    worker_that(monkeypatch, lambda request, limit: limits.append(limit))
    words = ("--method", "prompt_lookup", "--batch", 2, "--set", "isolation=process", "--set", "sample_limit_s=30")
    assert run(tmp_path / "run", *words)[0].code == 0
    assert [limit and limit.seconds for limit in limits] == [60, 60, 30 * isolation.PROOF_SAMPLES]


def test_a_worker_that_ends_between_requests_fails_the_cell_that_it_answered_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndsAfterJacobi(InThisProcess):
        def ask(self, request: Any, limit: isolation.Limit | None) -> Any:
            self.ended = "jacobi" in request.cell
            return super().ask(request, limit)

        def ending(self) -> str:
            return "ended with SIGSEGV"

    monkeypatch.setattr(isolation, "Worker", EndsAfterJacobi)
    outcome, cells = run(tmp_path / "run", *JACOBI, "--method", "prompt_lookup")
    assert (outcome.code, outcome.document["failed"]) == (1, 2)
    reason = "its process ended with SIGSEGV after it had answered, so it is not started again"
    assert counted(cells["jacobi T=0"])["error"].str.startswith(reason).all()
    assert set(counted(cells["prompt_lookup T=0"])["status"]) == {"ok"}


@pytest.fixture()
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests were started in the background, which ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_starts_its_isolated_cells_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupt(request: protocol.DecodeRequest, limit: object) -> None:
        assert Store.open(tmp_path / "run").notes.started(request.cell) is not None
        signal.raise_signal(number)
        raise AssertionError("the signal is raised before this")

    worker_that(monkeypatch, interrupt)
    outcome, _ = run(tmp_path / "run", *JACOBI)
    assert outcome.code == 3
    assert not list((tmp_path / "run" / "started").iterdir())
    monkeypatch.setattr(isolation, "Worker", InThisProcess)
    outcome, cells = run(tmp_path / "run", *JACOBI, "--resume")
    assert (outcome.code, outcome.document["failed"], len(cells)) == (0, 0, 2)


def test_a_worker_that_cannot_start_leaves_a_run_that_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CannotStart:
        def __init__(self, setup: protocol.WorkerSetup, log: Path) -> NoReturn:
            raise isolation.WorkerEnded("ended with exit code 1")

    monkeypatch.setattr(isolation, "Worker", CannotStart)
    words = ("run", *JACOBI, *WORDS, "--out", tmp_path / "run")
    outcome = stride(*words)
    assert outcome.code == RunIncomplete.exit_code
    assert "could not start: it ended with exit code 1" in outcome.err
    assert "--resume --set isolation=none" in outcome.err
    alone = ("--method", "jacobi", *WORDS, "--set", "prove=false", "--set", "isolation=none")
    outcome = stride("run", *alone, "--out", tmp_path / "run", "--resume")
    assert (outcome.code, outcome.document["failed"]) == (0, 0)


def test_a_full_disk_in_the_worker_ends_the_run_and_blames_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(request: object, limit: object) -> None:
        raise RunIncomplete("the disk is full")

    worker_that(monkeypatch, fill)
    assert run(tmp_path / "run", *JACOBI)[0].code == 3
    assert not list((tmp_path / "run" / "started").iterdir())


def test_our_methods_and_baselines_decode_in_the_runs_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "Worker", Refuses)
    register(monkeypatch, METHODS, "one_by_one", OneByOne)
    assert run(tmp_path / "run", "--method", "one_by_one", "--set", "prove=false")[0].code == 0
    assert run(tmp_path / "baselines", "--method", "autoregressive", "-t", 1, *UNPROVED)[0].code == 0


def test_what_a_worker_prints_holds_no_control_characters_but_a_bars_returns() -> None:
    assert isolation.shown("10%\r20%\n\tred \x1b[31m\x07") == "10%\r20%\n\tred \\x1b[31m\\x07"


SCORED = ("--method", "sjd", "--backbone", "tabular", "--max-new-tokens", 4, "--json", "--set", "prove=false")


def scored(tmp_path: Path, fault: str, *words: object, kind: str = "fault") -> tuple[Outcome, dict[str, Any]]:
    """A run whose task is the plugin's, with one fault in its scorer."""
    task = f"{{name: bad_scorer, {kind}: {fault}}}"
    outcome = stride("run", *SCORED, "--task", task, *words, "--out", tmp_path / "run")
    assert (tmp_path / "run").exists(), outcome
    return outcome, by_label(Store.open(tmp_path / "run"))


def errors(cell: Any) -> list[str]:
    """The error of each sample, by prompt; empty where it has a score."""
    return counted(cell).sort_values("prompt")["error"].fillna("").tolist()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("exit", "scoring: its process ended with exit code 0 while it scored b (repetition 0)"),
        ("segfault", "scoring: its process ended with SIGSEGV"),
        ("kill", "scoring: its process ended with SIGKILL"),
        ("close_files", "scoring: its process "),
        ("hang_in_c", "scoring: its process passed the limit of 1 s"),
    ],
)
def test_whatever_ends_the_process_of_a_scorer_costs_the_scores_of_its_cell(
    tmp_path: Path, plugin: Path, fault: str, reason: str
) -> None:
    outcome, cells = scored(tmp_path, fault, "--set", "sample_limit_s=1")
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (1, 2, 4)
    assert "Traceback" not in outcome.err
    for cell in cells.values():
        assert [error.startswith(reason) for error in errors(cell)] == [False, True, True]
        assert cell.meta.set_scores["outputs"].value is None
        assert counted(cell)["tokens"].map(len).eq(4).all()  # no decode is lost
    assert "score.length" not in stride("report", tmp_path / "run", "--json").out
    again = stride("run", *SCORED, "--task", f"{{name: bad_scorer, fault: {fault}}}", "--set", "sample_limit_s=1",
                   "--out", tmp_path / "run", "--resume")  # fmt: skip
    assert again.code == 1 and again.document["failed"] == 4


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "scoring: TimeLimitPassed: passed the limit of 1 s (sample_limit_s: 1)"),
        ("raise", "scoring: IndexError: pop from empty list"),
        ("leave", "scoring: SystemExit: 0"),
        ("interrupt", "scoring: KeyboardInterrupt"),
    ],
)
def test_what_a_scorer_raises_costs_the_score_of_its_sample(
    tmp_path: Path, plugin: Path, fault: str, reason: str
) -> None:
    outcome, cells = scored(tmp_path, fault, "--set", "sample_limit_s=1")
    assert (outcome.code, outcome.document["failed"]) == (1, 2)
    for cell in cells.values():
        assert [error.startswith(reason) for error in errors(cell)] == [False, True, False]
        assert cell.meta.set_scores["outputs"].reason.startswith(f"scoring: 1 of 3 outputs have no score: {reason}")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segfault", "scoring: its process ended with SIGSEGV while it scored all outputs"),
        ("exit", "scoring: its process ended with exit code 0 while it scored all outputs"),
        ("hang", "scoring: TimeLimitPassed: passed the limit of 1 s (sample_limit_s: 0.1)"),
        ("leave", "scoring: SystemExit: 0"),
    ],
)
def test_a_faulty_scorer_of_sets_costs_that_score(tmp_path: Path, plugin: Path, fault: str, reason: str) -> None:
    outcome, cells = scored(tmp_path, fault, "--set", "sample_limit_s=0.1", kind="set_fault")
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (1, 2, 0)
    for cell in cells.values():
        assert cell.meta.set_scores["outputs"].reason.startswith(reason)
        assert not any(errors(cell))


@pytest.mark.slow
def test_scores_are_the_same_in_a_worker_and_in_the_runs_process(tmp_path: Path, plugin: Path) -> None:
    tables = []
    for isolation_words in ((), ("--set", "isolation=none")):
        outcome, cells = scored(tmp_path / str(len(tables)), "none", *isolation_words)
        assert outcome.code == 0, outcome.err
        columns = ["prompt", "tokens", "text", "scores", "agreement", "logprobs"]
        tables.append(
            [(counted(cell).reset_index()[columns].to_json(), cell.meta.set_scores) for cell in cells.values()]
        )
    assert tables[0] == tables[1]


@pytest.mark.faults
def test_a_run_that_a_scorer_kills_twice_goes_on_without_it(
    tmp_path: Path, plugin: Path, stride_env: dict[str, str]
) -> None:
    words = ("run", "--method", "autoregressive", *SCORED[2:], "--task", "{name: bad_scorer, fault: kill_run}")
    site = os.pathsep.join([str(tmp_path / "site"), stride_env["PYTHONPATH"]])
    command = [sys.executable, "-c", "from stridebench.harness.cli.main import main; main()", *map(str, words)]
    command += ["--out", str(tmp_path / "run"), "--resume"]
    ended = [
        subprocess.run(command, env={**stride_env, "PYTHONPATH": site}, capture_output=True, text=True)
        for _ in range(3)
    ]
    assert [run.returncode for run in ended] == [-signal.SIGKILL, -signal.SIGKILL, 1], ended
    (cell,) = by_label(Store.open(tmp_path / "run")).values()
    reason = "scoring: 2 runs ended while its task scored b (repetition 0), so it is not started again"
    assert errors(cell) == ["", reason, reason]
