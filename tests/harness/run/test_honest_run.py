"""A run never says more of its outputs than it has seen: broken numbers, late errors and ended processes are told."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.task import Prompt, SetScore, Task
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.machine.extras import install_command
from stridebench.harness.plan import contract
from stridebench.harness.proof.cases import cases_of
from stridebench.harness.proof.distance import toy_drafter
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS, TASKS
from stridebench.harness.run.scoring import checked_scores, checked_set_scores
from tests.support.cli import Outcome, refused, stride
from tests.support.faulty_methods import RaisesOnToys, WrongLate
from tests.support.one_by_one import OneByOne, register
from tests.support.runs import by_label, counted

WORDS = ("--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "--max-new-tokens", 8, "--json")
UNPROVED = (*WORDS, "--set", "prove=false")
LARGE = ("--backbone", "random-llama-1m", "--task", "{name: tabular, limit: 2}", "--max-new-tokens", 4, "--json")


class WrongLateByDesign(WrongLate):
    claim = Claim.APPROXIMATE


class Exits(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if run.emitted == 2:
            sys.exit(0)
        return super().token(run, p)


def task_of(**members: Any) -> type[Task]:
    return type("Asked", (TASKS.get("tabular"),), members)


def task_with(monkeypatch: pytest.MonkeyPatch, **members: Any) -> tuple[object, ...]:
    """Return the words of a run of three prompts with a task of these members."""
    register(monkeypatch, TASKS, "asked", task_of(**members))
    task = ("--backbone", "tabular", "--task", "{name: asked, limit: 3}", "--max-new-tokens", 4, "-t", 0)
    return (*task, "--json", "--set", "prove=false")


def run(folder: Path, *methods: str, words: tuple[object, ...] = WORDS) -> tuple[Outcome, dict[str, Any]]:
    named = [word for method in methods for word in ("--method", method)]
    outcome = stride("run", *named, *words, "--out", folder)
    return outcome, by_label(Store.open(folder))


def test_logits_that_are_not_finite_fail_the_sample_and_leave_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tabular, "_logits", lambda self, entry: torch.full((self.vocabulary,), torch.nan).double())
    outcome, cells = run(tmp_path / "run", "speculative", words=(*WORDS, "-t", 0, "-t", 1))
    assert outcome.code != 0
    for cell in cells.values():
        assert set(counted(cell)["status"]) == {"failed"}
        assert cell.meta.verdict.word is None
        assert "no sample succeeded" in cell.meta.verdict.note
    errors = counted(cells["autoregressive T=0"])["error"]
    assert errors.str.contains("the logits of the target are NaN or infinite from step 1 on").all()
    assert "exact" not in stride("report", tmp_path / "run").out.partition("verdict:")[0]


@pytest.mark.parametrize(("value", "temperature"), [(float("nan"), 0.0), (float("inf"), 1.0)])
def test_every_method_fails_on_logits_that_are_not_finite_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, value: float, temperature: float
) -> None:
    """Whatever error the numbers make a method raise first."""

    def overflown(self: Tabular | MaskedTabular, entry: int) -> torch.Tensor:
        return torch.full((self.vocabulary,), value).double()

    monkeypatch.setattr(Tabular, "_logits", overflown)
    monkeypatch.setattr(MaskedTabular, "_logits", overflown)
    for name, variants in contract.usable_methods():
        method = variants[0]
        case = cases_of(method)[0]
        sampling, draws = replace(case.sampling, temperature=temperature), SeededDraws(0, "t", "p", 0)
        backbone = case.backbone()
        run = open_run(backbone, toy_drafter(backbone), case.prompt, sampling, case.length, draws)
        with torch.no_grad(), pytest.raises(ContractError, match=r"logits of the (target|drafter) are NaN or infinite"):
            decode(method, run)
            pytest.fail(name)


def test_one_bad_pass_is_enough_and_its_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, passes = Tabular._logits, []

    def third(self: Tabular, entry: int) -> torch.Tensor:
        passes.append(entry)
        return sound(self, entry) * (float("nan") if len(passes) == 3 else 1.0)

    monkeypatch.setattr(Tabular, "_logits", third)
    _, cells = run(tmp_path / "run", "jacobi", words=(*UNPROVED, "--set", "warmup=0"))
    errors = counted(cells["autoregressive T=0"])["error"].dropna()
    assert len(errors)
    assert all("NaN or infinite from step 3 on" in error for error in errors)


def test_timed_outputs_that_differ_from_the_baselines_break_an_enumerated_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, METHODS, "wrong_late", WrongLate)
    register(monkeypatch, METHODS, "wrong_late_by_design", WrongLateByDesign)
    outcome, cells = run(tmp_path / "run", "wrong_late", "wrong_late_by_design")
    verdict = cells["wrong_late T=0"].meta.verdict
    assert (verdict.word, verdict.total_variation < 1e-12) == ("broken", True)
    assert "2 of 2 timed outputs differ from the baseline's" in verdict.note
    assert "tabular/0 at token 6 (a logit margin of" in verdict.note
    assert outcome.code == 1
    assert cells["wrong_late_by_design T=0"].meta.verdict.word == "approximate"


@pytest.mark.slow
def test_an_error_while_a_claim_is_enumerated_does_not_skip_the_greedy_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, METHODS, "raises_on_toys", RaisesOnToys)
    outcome, cells = run(tmp_path / "run", "raises_on_toys", words=(*LARGE, "-t", 1))
    verdict = cells["raises_on_toys T=1"].meta.verdict
    assert verdict.word == "broken"
    assert "not on a toy" in verdict.error
    assert verdict.greedy.startswith("0/2 equal")
    assert outcome.code == 1


def test_an_error_while_a_claim_is_checked_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class RightOnLargeModels(RaisesOnToys):
        def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
            return OneByOne.token(self, run, p) if p.shape[-1] >= 100 else super().token(run, p)

    register(monkeypatch, METHODS, "right_on_large_models", RightOnLargeModels)
    outcome, cells = run(tmp_path / "run", "right_on_large_models", words=LARGE)
    verdict = cells["right_on_large_models T=0"].meta.verdict
    assert (verdict.word, verdict.greedy[:9]) == ("unverified", "2/2 equal")
    assert (outcome.code, outcome.document["failed"]) == (1, 0)


class TooWideForToys(OneByOne):
    """Refuses every toy, as a window wider than its grid is refused."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if p.shape[-1] < 100:
            raise UsageError("too wide for this model")
        return super().token(run, p)


class TooWideForToysByDesign(TooWideForToys):
    claim = Claim.APPROXIMATE


@pytest.mark.parametrize(
    ("method", "word", "code"), [(TooWideForToys, "unverified", 1), (TooWideForToysByDesign, "approximate", 0)]
)
def test_parameters_that_fit_no_toy_fail_only_a_run_whose_method_claims_a_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[TooWideForToys], word: str, code: int
) -> None:
    register(monkeypatch, METHODS, "too_wide", method)
    outcome, cells = run(tmp_path / "run", "too_wide", words=LARGE)
    verdict = cells["too_wide T=0"].meta.verdict
    assert (verdict.word, outcome.code, bool(verdict.error)) == (word, code, bool(code))
    assert "too wide for this model" in verdict.note


def test_a_method_that_ends_the_process_is_a_failed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, "exits", Exits)
    outcome, cells = run(tmp_path / "run", "exits", "sjd", words=UNPROVED)
    errors = counted(cells["exits T=0"])["error"]
    assert errors.str.contains(r"Exits.step called sys.exit\(0\)").all()
    assert set(counted(cells["sjd T=0"])["status"]) == {"ok"}
    assert (outcome.code, outcome.document["failed"]) == (1, 2)


def test_a_scorer_that_ends_the_process_is_a_failed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = task_with(monkeypatch, metrics=("wrong",), score=lambda *_: sys.exit(0))
    outcome, cells = run(tmp_path / "run", "sjd", words=words)
    assert outcome.code == 1
    assert all(counted(cell)["error"].str.contains("scoring: SystemExit").all() for cell in cells.values())


class Cancelled(BaseException):
    """As asyncio's: no Exception. Its message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class RaisesCancelled(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        raise Cancelled


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_no_exception_fails_the_sample_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    register(monkeypatch, METHODS, "raises_cancelled", RaisesCancelled)
    outcome, cells = run(tmp_path / "run", "raises_cancelled", words=(*UNPROVED, "--batch", batch))
    assert outcome.code == 1 and "Traceback" not in outcome.err
    errors = counted(cells["raises_cancelled T=0"])["error"]
    assert errors.str.startswith("Cancelled: (its message cannot be read: it raises RuntimeError)").all()


def cancel(*_: object) -> None:
    raise Cancelled


NUMPY: Any = SetScore(np.float32(2), np.int64(3), low=np.float64(1), high=np.float64(4))  # type: ignore[arg-type]  # a plugin's


@pytest.mark.parametrize(
    ("score", "stored", "reason"),
    [
        (lambda *_: {"known": NUMPY}, (2.0, 3, 1.0, 4.0), ""),
        (cancel, (None, 3, None, None), "scoring: Cancelled"),
    ],
)
def test_scores_of_a_set_are_plain_numbers_or_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: Any, stored: tuple[object, ...], reason: str
) -> None:
    words = task_with(monkeypatch, set_metrics=("known",), score_set=score)
    outcome, cells = run(tmp_path / "run", "sjd", words=words)
    assert outcome.code == bool(reason) and "Traceback" not in outcome.err
    known = cells["sjd T=0"].meta.set_scores["known"]
    assert (known.value, known.n, known.low, known.high) == stored and reason in known.reason
    assert (f"no known of {cells['sjd T=0'].meta.cell}: scoring: " in outcome.err) == bool(reason)


def test_what_methods_and_tasks_change_in_the_process_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative folder is that of the start, whatever a task changes while it is planned."""

    def change(what: str) -> None:
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        print(f"{what} prints")
        sys.stdout = io.StringIO()

    class Rearranges(OneByOne):
        def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
            token = super().token(run, p)
            if run.room == 1:  # behind the last pass: one with other threads is refused
                torch.set_num_threads(2)
            change("a method")
            return token

    def prompts(task: Task) -> Any:
        change("a task")
        return TASKS.get("tabular").prompts(task)

    def score(*_: object) -> dict[str, float]:
        torch.set_num_threads(2)
        change("a scorer")
        return {"right": 1.0}

    def score_set(*_: object) -> dict[str, SetScore]:
        torch.set_num_threads(2)
        change("a scorer of sets")
        return {"known": SetScore(1.0, 3)}

    register(monkeypatch, METHODS, "rearranges", Rearranges)
    scorers = {"metrics": ("right",), "set_metrics": ("known",), "score": score, "score_set": score_set}
    words = task_with(monkeypatch, prompts=prompts, **scorers)
    monkeypatch.chdir(tmp_path)
    before = (torch.get_num_threads(), torch.get_default_dtype())
    outcome, cells = run(Path("run"), "rearranges", "sjd", words=words)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before and Path.cwd() == tmp_path
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (0, 3, 0)
    assert outcome.document["run"] == str(tmp_path / "run")
    assert all(f"{what} prints" in outcome.err for what in ("a method", "a task", "a scorer", "a scorer of sets"))
    assert all(cell.meta.set_scores["known"].value == 1.0 for cell in cells.values())


def test_ids_of_numpy_and_scores_that_no_plot_holds_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (Prompt("a", tokens=np.array([0, 1])), Prompt("b", tokens=(np.int64(1),)))  # type: ignore[arg-type]
    members = {"metrics": ("huge",), "prompts": lambda *_: ids, "score": lambda *_: {"huge": 1e308}}
    outcome, cells = run(tmp_path / "run", "sjd", words=task_with(monkeypatch, **members))
    assert outcome.code == 0, outcome.err
    assert len(counted(cells["sjd T=0"])) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "returned None"),
        ("0.5", "returned '0.5'"),
        ({}, "lacks right"),
        ({"right": 1.0, "left": 1.0}, "names left"),
        ({"right": float("nan")}, "returned nan for 'right'"),
        ({"right": "high"}, "returned 'high' for 'right'"),
        ({"right": object()}, "for 'right', not a finite number"),
        ({"right": None}, "returned None for 'right'"),
        ({"right": {"right": 1.0}}, "returned {'right': 1.0} for 'right'"),
        ({"right": 1 + 0j}, "returned (1+0j) for 'right'"),
        ({"right": np.str_("0.5")}, "for 'right', not a finite number"),
        ({"right": np.ones(1)}, "returned array([1.]) for 'right'"),
        ({"right": torch.ones(2)}, "returned tensor([1., 1.]) for 'right'"),
        ({"right": 10**400}, "for 'right', not a finite number"),
        ({"right": np.float32("inf")}, "for 'right', not a finite number"),
        ({1: 0.5, "right": 0.5}, "names 1"),
        ([("right", 1.0)], "returned [('right', 1.0)]"),
    ],
)
def test_a_score_that_is_no_number_is_refused_with_what_it_is(answer: object, reason: str) -> None:
    """`test_where_one_output_has_no_score_there_is_no_mean_of_the_rest` has such a one in a run."""
    with pytest.raises(ContractError, match=re.escape(reason)):
        checked_scores(task_of(metrics=("right",))(), answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"known": SetScore("a", 1)}, "returned 'a' for 'known', not a finite number"),  # type: ignore[arg-type]
        ({"known": SetScore(1.0, 1, low=float("-inf"))}, "returned -inf for 'known', not a finite number"),
        ({"other": SetScore(1.0, 1)}, "score_set names other; set_metrics: known"),
    ],
)
def test_a_score_of_a_set_that_is_no_number_is_refused(answer: object, reason: str) -> None:
    with pytest.raises(ContractError, match=re.escape(reason)):
        checked_set_scores(task_of(set_metrics=("known",))(), answer, 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], "has no prompts"),
        ([Prompt("a", tokens=(0,)), Prompt("a", tokens=(1,))], "gives one id to several prompts: a"),
        (None, "returned NoneType instead of a sequence of Prompt"),
        (["text"], "returned list instead of a sequence of Prompt"),
        (KeyError("column"), "the task asked could not make its prompts: KeyError: 'column'"),
        ((Prompt("a", tokens=(0,), category=5),), "the category of a is 5, not a text"),  # type: ignore[arg-type]
        ((Prompt("a", tokens=(0.5,)),), "the tokens of a are not whole numbers"),  # type: ignore[arg-type]
        ((Prompt("a", tokens=(-1,)),), "a has the token -1; ids start at 0"),
    ],
)
def test_prompts_that_cannot_be_run_end_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, reason: str
) -> None:
    def prompts(task: Task) -> Any:
        if isinstance(answer, KeyError):
            raise answer
        return answer

    words = task_with(monkeypatch, prompts=prompts)
    assert reason in refused("run", "--method", "sjd", *words, "--out", tmp_path / "run")


def test_a_resumed_run_has_one_line_a_cell_in_its_history(tmp_path: Path) -> None:
    words = ("run", "--method", "sjd", *UNPROVED, "--out", tmp_path / "run")
    history = tmp_path / "history.jsonl"
    history.write_text("kept as it is\n")
    for resume in ((), ("--resume",)):
        assert stride(*words, *resume, "--append", history).code == 0
        lines = history.read_text().splitlines()
        assert lines[0] == "kept as it is"
        assert len(lines) == 3


def test_a_run_folder_is_named_and_is_a_runs(tmp_path: Path) -> None:
    words = ("run", "--method", "sjd", *WORDS)
    empty = stride(*words, "--out", "")
    assert empty.code == 2 and "it is empty; name a folder" in empty.err
    (tmp_path / "notes.txt").write_text("mine")
    assert "no run to resume" in refused(*words, "--out", tmp_path, "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_executor_that_is_not_installed_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    text = refused("run", "--method", "sjd", *WORDS, "--out", tmp_path / "run", "--executor", "ray")
    assert install_command("ray") in text
    assert not (tmp_path / "run").exists()


class RaisesControlCharacters(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("\x1b[2J\x07cleared \ud800 line\nnext")


def test_control_characters_of_an_error_are_shown_as_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, "raises_control_characters", RaisesControlCharacters)
    outcome, cells = run(tmp_path / "run", "raises_control_characters", words=UNPROVED)
    error = counted(cells["raises_control_characters T=0"])["error"].iloc[0]
    assert r"\x1b[2J\x07cleared \ud800 line next" in error
    report = stride("report", tmp_path / "run").out
    assert "\x07" not in report and "\x1b[2J" not in report
    assert outcome.code == 1


def test_a_pipe_in_a_run_folder_does_not_hang(tmp_path: Path) -> None:
    run(tmp_path / "run", "sjd", words=UNPROVED)
    table = next((tmp_path / "run" / "cells").glob("*/samples.parquet"))
    table.unlink()
    os.mkfifo(table)
    assert "is damaged" in refused("report", tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert "is not a regular file" in refused("report", tmp_path / "run")


def test_where_one_output_has_no_score_there_is_no_mean_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def score(prompt: Prompt) -> dict[str, float]:
        seen.append(prompt.id)
        return {"right": 1.0} if len(set(seen)) != 2 else {"wrong": 1.0}

    def together(*_: object) -> None:
        pytest.fail("the rest is scored together")

    sets = {"set_metrics": ("known", "other"), "score_set": together}
    words = task_with(monkeypatch, metrics=("right",), score=lambda task, prompt, *_: score(prompt), **sets)
    outcome, cells = run(tmp_path / "run", "sjd", words=words)
    assert (outcome.code, outcome.document["failed"]) == (1, 2)
    for cell in cells.values():
        reasons = {score.reason for score in cell.meta.set_scores.values()}
        assert len(reasons) == 1 and "scoring: 1 of 3 outputs have no score: scoring: ContractError" in reasons.pop()
    rows = stride("report", tmp_path / "run", "--json").document
    assert all("score.right" not in row or row["score.right"] is None for row in rows)
    assert all("the task's scorer failed on 1 outputs" in row["flags"] for row in rows)


def test_a_score_of_a_set_that_is_left_out_has_that_as_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {"set_metrics": ("known", "other"), "score_set": lambda *_: {"known": SetScore(2.0, 3)}}
    words = task_with(monkeypatch, metrics=("right",), score=lambda *_: {"right": np.bool_(True)}, **sets)
    outcome, cells = run(tmp_path / "run", "sjd", words=words)
    assert (outcome.code, outcome.document["failed"]) == (1, 0)
    for cell in cells.values():
        stored = cell.meta.set_scores
        assert stored["known"].value == 2.0 and counted(cell)["scores"].eq('{"right": 1.0}').all()
        assert (stored["other"].value, stored["other"].n) == (None, 3)
        assert stored["other"].reason == "scoring: the answer of Asked.score_set lacks it"
        assert f"no other of {cell.meta.cell}: scoring: the answer of Asked.score_set lacks it" in outcome.err


@pytest.mark.parametrize(("of_set", "limit"), [(False, "0.05 s"), (True, "0.5 s")])
def test_a_scorer_that_hangs_in_the_runs_process_passes_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_set: bool, limit: str
) -> None:
    def hang(*arguments: Any) -> Any:
        while True:
            with suppress(Exception):
                time.sleep(60)

    before = signal.getsignal(signal.SIGALRM)
    scorers = {"score": lambda *_: {"right": 0.5}, "score_set": hang} if of_set else {"score": hang}
    words = task_with(monkeypatch, metrics=("right",), set_metrics=("known",) if of_set else (), **scorers)
    outcome, cells = run(tmp_path / "run", "sjd", words=(*words, "--set", "sample_limit_s=0.05", "--limit", 1))
    assert (outcome.code, outcome.document["failed"]) == (1, 0 if of_set else 2)
    reason = f"scoring: TimeLimitPassed: passed the limit of {limit} (sample_limit_s: 0.05)"
    for cell in cells.values():
        told = cell.meta.set_scores["known"].reason if of_set else counted(cell)["error"].iloc[0]
        assert told.startswith(reason)
    assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("error", [SystemExit(0), KeyError("column"), Cancelled()])
def test_a_method_that_cannot_be_made_is_one_error(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @dataclass(frozen=True)
    class Unmade(OneByOne):
        width: int = 1

        def __post_init__(self) -> None:
            raise error

    register(monkeypatch, METHODS, "unmade", Unmade)
    words = ("--method", "{name: unmade, width: 2}", "--backbone", "tabular", "--task", "tabular")
    assert f"unmade cannot be made: {type(error).__name__}: " in refused("run", *words)
