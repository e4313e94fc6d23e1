"""The commands of the user guide run as they are written, page by page, and its links lead somewhere.

A comment before a block says what keeps it from running here. ``heavy``: it fetches weights or takes minutes, and runs
with ``-m audit``. ``elsewhere``: it needs what a test does not have, and only its options are checked.
"""

from __future__ import annotations

import re
import shlex
import tarfile
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import stridebench
from stridebench.harness.cli.main import stride as command_line
from tests import results
from tests.support.cli import stride

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
BLOCK = re.compile(r"(?:^<!-- (heavy|elsewhere): [^\n]+ -->\n)?^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
GOLDEN = ROOT / "tests" / "reports" / "golden"
STORED = {"quick": "quick", "sjdpp": "papers-sjdpp"}
"""Runs that pages read, and the stored runs that stand in for them."""
WITHOUT_PAPER = {
    *("adt_tree", "autoregressive", "cross_regression", "first_of", "ngram_mod"),
    *("gsd", "mulo_sd", "multi_head", "prompt_lookup"),
}
"""Methods whose file names no paper on arXiv."""
LAUNCHERS = ("torchrun", "accelerate")
"""Commands that start the command behind their own options in several processes."""


@dataclass(frozen=True)
class Command:
    """A line of a page and the mark of its block."""

    words: tuple[str, ...]
    mark: str


def commands(page: str) -> list[Command]:
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [(line, mark) for mark, block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]
    return [Command(tuple(shlex.split(line, comments=True)), mark) for line, mark in lines]


WITH_COMMANDS = [page for page in PAGES if commands(page)]
HEAVY = [page for page in WITH_COMMANDS if any(one.mark == "heavy" for one in commands(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run a page in: stored runs and a file of prompts lie there."""
    for name, stored in STORED.items():
        with tarfile.open(GOLDEN / stored / "store.tar.xz") as archive:
            archive.extractall(tmp_path / "runs", filter="data")
        if name != stored:
            (tmp_path / "runs" / stored).rename(tmp_path / "runs" / name)
    (tmp_path / "mine.jsonl").write_text('{"id": "sum", "prompt": "def sum(numbers):"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: Command) -> None:
    outcome = stride(*command.words[1:])
    assert outcome.code == 0, (command.words, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run(page: str, folder: Path) -> None:
    for command in commands(page):
        if not command.mark:
            run(command)


@pytest.mark.audit
@pytest.mark.parametrize("page", HEAVY)
def test_the_heavy_commands_of_a_page_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in commands(page):
        if command.mark != "elsewhere" and not (folder / "runs" / _out(command)).exists():
            run(command)


def _out(command: Command) -> str:
    words = command.words
    return Path(words[words.index("--out") + 1]).name if "--out" in words else "no-such-run"


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_are_known(page: str) -> None:
    """Options of commands that do not run here are those of the verb."""
    for command in commands(page):
        words = command.words
        if words[0] in LAUNCHERS:
            words = words[words.index("stride") :]
        assert words[0] in ("stride", "pip", "pytest", "tox"), words
        if words[0] == "stride":
            check_options(words[1:])


def test_an_unknown_option_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_options(("run", "quick", "--no-such-option"))


def check_options(words: tuple[str, ...]) -> None:
    context: Any = click.Context(command_line)
    verb, rest = command_line.get_command(context, words[0]), list(words[1:])
    assert verb is not None, words
    while isinstance(verb, click.Group):
        verb = verb.get_command(context, rest.pop(0))
        assert verb is not None, words
    known = {name for parameter in verb.params for name in parameter.opts} | {"--help"}
    passes_on = verb.context_settings.get("ignore_unknown_options", False)
    assert passes_on or {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, words


def test_every_block_of_commands_is_read() -> None:
    fences = sum((DOCS / page).read_text(encoding="utf-8").count("```bash") for page in PAGES)
    assert fences == sum(len(BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))) for page in PAGES) > 20
    assert not re.search(r"^stride ", "".join(BLOCK.sub("", (DOCS / page).read_text()) for page in PAGES), re.MULTILINE)


def test_the_guide_holds_every_page() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = re.findall(r"[\w-]+\.md", str(config["nav"]))
    upstream = {path.name for path in (DOCS / "upstream").glob("*.md")}
    assert set(listed) == {*PAGES, *upstream, "commands.md", "python.md", "index.md"}
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text(encoding="utf-8")):
            assert (DOCS / link).exists(), (page, link)


@pytest.fixture(scope="module")
def reference() -> Any:
    """The hook that makes pages while the guide is built."""
    spec = spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
    assert spec is not None and spec.loader is not None
    pages = module_from_spec(spec)
    spec.loader.exec_module(pages)
    return pages


def test_every_method_has_a_card_with_its_paper_and_the_meaning_of_each_parameter(reference: Any) -> None:
    rows = {row["name"]: row for row in reference.methods()}
    cards = {name: reference.card(row) for name, row in rows.items()}
    assert "| `window` | `16` | whole number |" in cards["sjdpp"] and "| exact if | tau = inf" in cards["sjdpp"]
    assert "another distribution, by design" in cards["sjdpp"] and "arxiv.org/abs/2211.17192" in cards["speculative"]
    unexplained = [
        f"{name} {key}"
        for name, row in rows.items()
        for key in row["params"]
        if not reference.meanings_of(reference.METHODS.get(name)).get(key)
    ]
    assert not unexplained
    assert all(f"({name}.md)" in reference.index(list(rows.values())) for name in rows)
    unknown = [name for name, text in cards.items() if "arxiv.org" not in text and name not in WITHOUT_PAPER]
    assert not unknown


def test_a_card_has_a_measured_row_that_its_command_makes(reference: Any) -> None:
    (table,) = results.read("cards").tables
    commands = {row[0]: row[-1] for row in table.rows}
    known = {row["name"] for row in reference.methods()}
    assert len(commands) > 25 and set(commands) <= known  # a method that is added edits nothing but its own file
    assert commands == {name: reference.command_of(name) for name in commands}
    text = "\n".join(reference.measured("zipar"))
    assert "| tau | " in text and commands["zipar"] in text and not reference.measured("nothing")


def test_the_command_of_a_card_is_planned(reference: Any) -> None:
    for row in reference.methods():
        if command := reference.command_of(row["name"]):
            outcome = stride(*shlex.split(command)[1:], "--dry-run", "--json")
            assert outcome.code == 0, (command, outcome.err)


def test_the_reference_holds_every_command_and_every_name_of_the_package(reference: Any) -> None:
    text, python = reference.commands(), reference.python()
    assert "## stride run\n" in text and "--budget TIME" in text and "## stride engine check" in text
    assert all(f"## {name}\n" in python for name in stridebench.__all__ if name != "__version__")
    assert "### StoredRun.tidy" in python and "open_run(path: " in python
