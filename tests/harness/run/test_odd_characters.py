"""Lone surrogates and control characters of prompts, outputs, labels and names: escapes in every report."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.method import label
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import printable, printable_line
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS, TASKS
from tests.support.cli import stride
from tests.support.one_by_one import OneByOne, register

ODD = "\x1b[2J\ud800\x00\u2028\uffff[/red]$a_{$|\n<&>"
SHOWN = r"\x1b[2J\ud800\x00\u2028\uffff[/red]$a_{$|\n<&>"
CANNOT_BE_SHOWN = re.compile("[\x00-\x08\x80-\x9f\x0b-\x0c\x0e-\x1a\x1c-\x1f\u2028\ud800\uffff]|\x1b(?!\\[[0-9;]*m)")
WORDS = ("--backbone", "tabular", "--max-new-tokens", 6, "--set", "prove=false")


@dataclass(frozen=True)
class OddMethod(OneByOne):
    """One by one, with a parameter that it does not read."""

    word: str = "plain"


@dataclass(frozen=True)
class OddTask(TASKS.get("tabular")):  # type: ignore[misc]  # a class found at run time
    word: str = "plain"

    def prompts(self) -> list[Prompt]:
        return [Prompt(f"{number}{ODD}", tokens=(0,), category=ODD) for number in range(3)]

    def score(self, *arguments: Any) -> dict[str, float]:
        return {}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose prompts, categories, outputs, labels and parameters hold odd characters."""
    path = tmp_path_factory.mktemp("odd") / "run"
    method = r'{name: odd_method, word: "\e[2J\0\L[/red]$a_{$|\n<&>"}'
    task = r'{name: odd_task, word: "\e[2J\0\L"}'
    with pytest.MonkeyPatch.context() as patch:
        register(patch, METHODS, "odd_method", OddMethod)
        register(patch, TASKS, "odd_task", OddTask)
        patch.setattr(Tabular, "decode", lambda self, tokens: ODD)
        outcome = stride("run", "--method", method, "--method", "sjd", "--task", task, *WORDS, "--out", path)
        assert outcome.code == 0, outcome
        assert_shown(outcome.out + outcome.err)
        yield path


def assert_shown(text: str) -> None:
    problem = CANNOT_BE_SHOWN.search(text)
    assert problem is None, repr(text[max(0, problem.start() - 60) : problem.end() + 20])


def test_every_view_of_a_run_shows_escapes(run: Path, tmp_path: Path) -> None:
    (cell,) = (name for name in Store.open(run).cells() if name.startswith("odd_method"))
    baseline = tmp_path / "baseline.json"
    views: list[tuple[tuple[object, ...], int]] = [
        (("report", run), 0),
        (("report", run, "--json"), 0),
        (("show", run), 0),
        (("show", run, cell), 0),
        (("show", run, cell, "--json"), 0),
        (("show", run, cell, "--prompt", f"0{SHOWN}"), 0),
        (("show", run, cell, "--prompt", f"0{SHOWN}", "--json"), 0),
        (("show", run, cell, "--prompt", f"1{ODD}"), 0),
        (("show", run, cell, "--prompt", ODD), 2),
        (("report", run, "--against", run, "--out", tmp_path / "compare.md"), 0),
        (("report", run, "--against", run, "--json"), 0),
        (("gate", "make", run, "--out", baseline), 0),
        (("gate", "check", run, "--baseline", baseline), 4),
        (("gate", "check", run, "--baseline", baseline, "--json"), 4),
    ]
    for words, code in views:
        outcome = stride(*words)
        assert outcome.code == code, outcome
        assert_shown(outcome.out + outcome.err)
        if "--json" in words:
            assert outcome.document


def test_names_of_files_are_shown_with_escapes(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2J\x07\x9b"
    words = ("run", "--method", "sjd", "--task", "{name: tabular, limit: 1}", *WORDS, "--out", folder / "run")
    commands = (
        words,
        ("report", folder / "run"),
        ("gate", "make", folder / "run", "--out", folder / "baseline.json"),
        ("show", folder / "run"),
        words,  # refused: the folder holds a run
        ("report", folder / "none"),
        ("run", folder / "none.yaml"),
    )
    for command in commands:
        outcome = stride(*command)
        assert "Traceback" not in outcome.err, outcome
        assert_shown(outcome.out + outcome.err)
        assert r"\x07" in outcome.out + outcome.err or command[0] == "show", outcome


def test_every_file_of_a_report_shows_escapes(run: Path, tmp_path: Path) -> None:
    stride("gate", "make", run, "--out", tmp_path / "baseline.json")
    stride("gate", "check", run, "--baseline", tmp_path / "baseline.json")
    files = [path for path in run.rglob("*") if path.suffix in (".md", ".csv", ".tex", ".json", ".xml", ".svg")]
    assert {path.suffix for path in files} == {".md", ".csv", ".tex", ".json", ".xml", ".svg"}
    for path in files:
        assert_shown(path.read_text(encoding="utf-8"))
        if path.suffix in (".xml", ".svg"):
            ET.parse(path)
    labels = set(pd.read_csv(run / "report" / "summary.csv")["label"])
    assert r"odd_method word=\x1b[2J\x00\u2028[/red]$a_{$|\n<&>" in labels
    assert r"\x1b[2J\ud800\x00" in (run / "report" / "summary.md").read_text(encoding="utf-8")


def test_prompts_are_stored_with_escapes(run: Path) -> None:
    store = Store.open(run)
    for name in store.cells():
        samples = store.cell(name).samples.query("not warmup")
        assert set(samples["prompt"]) == {f"{number}{SHOWN}" for number in range(3)}
        assert set(samples["category"]) == {SHOWN}
        assert set(samples["status"]) == {"ok"}
        assert samples["text"].str.contains(r"\ud800", regex=False).all()


def test_a_prompts_text_with_a_lone_surrogate_is_read_as_its_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Surrogates(TASKS.get("programs")):  # type: ignore[misc]  # a class found at run time
        metrics = ()

        def prompts(self) -> list[Prompt]:
            return [Prompt("one", text="def f(x):\n    return '\ud800'\n")]

        def score(self, *arguments: Any) -> dict[str, float]:
            return {}

    register(monkeypatch, TASKS, "surrogates", Surrogates)
    words = ("--method", "prompt_lookup", "--backbone", "embedded-code", "--task", "surrogates")
    limits = ("--max-new-tokens", 3, "--set", "prove=false", "--set", "greedy_check={prompts: 0}")
    outcome = stride("run", *words, *limits, "--out", tmp_path / "run", "--json")
    assert (outcome.code, outcome.document["failed"]) == (0, 0), outcome


def test_the_name_of_a_suite_makes_a_folder_whatever_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = r'{name: "a/../b\0\e[2J", methods: [sjd], backbones: [tabular], tasks: [{name: tabular, limit: 1}], '
    Path("mine.yaml").write_text(content + "max_new_tokens: 4, prove: false}")
    for words in ((), ("--resume",)):
        outcome = stride("run", "mine.yaml", *words)
        assert outcome.code == 0
        assert_shown(outcome.out + outcome.err)
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("a-..-b-2J-")


def test_a_label_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("OddLabel", (OddMethod,), {})
    register(monkeypatch, METHODS, "odd_label", kind)
    assert label(kind(ODD)) == f"odd_label word={SHOWN}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", r"a\nb\tc"),
        ("\ud800\x00", r"\ud800\x00"),
        ("\uffff\ufdd0", r"\uffff\ufdd0"),
        ("\u00e9 \u0928\u200d", "\u00e9 \u0928\u200d"),
    ],
)
def test_what_cannot_be_shown_is_an_escape(text: str, shown: str) -> None:
    assert printable_line(text) == shown
    assert printable(text) == shown.replace(r"\n", "\n").replace(r"\t", "\t")
