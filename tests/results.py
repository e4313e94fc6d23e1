"""Measured results that the documentation quotes, with their command, commit and machine.

A page marks the place of a table with ``<!-- results: FILE/TABLE -->`` and ``<!-- end -->``.
`python -m tests.results README.md` writes the tables between the marks.

Runs of `servers` and `crossover` become results that pages quote, in one file if they have one commit:

    python -m tests.results --name engines runs/servers
    python -m tests.results --name crossover runs/crossover

write `reports/data/results/engines.yaml` and `crossover.yaml` (tables side_by_side and crossover N), and
`docs/images/engines.png` and `docs/images/crossover.png`.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.record.provenance import machine
from stridebench.harness.record.store import Store
from stridebench.reports.run_report import RunReport
from stridebench.reports.text_table import TextTable, markdown_lines

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "reports" / "data" / "results"
FIELDS = ("title", "command", "commit", "date", "machine", "setting", "tables")
BLOCK = re.compile(r"(<!-- results: (\w+)/([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def document(title: str, command: str, setting: str, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a results file that is measured now, on this machine and commit, by one thread."""
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
    facts = machine()
    return {
        "title": title,
        "command": f"python -m {command}",
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{facts.get('cores')} cores of {facts.get('cpu')}, torch {version('torch')}, 1 thread",
        "setting": setting,
        "tables": tables,
    }


def save(path: Path | None, content: dict[str, Any]) -> None:
    """Write a results file, if one is asked for."""
    if path is not None:
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")


@dataclass(frozen=True)
class ResultsTable:
    """A table of measured values as strings: a value with its interval, or empty where nothing was measured."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """Return the table as Markdown."""
        return "\n".join(markdown_lines(list(self.columns), [list(row) for row in self.rows]))


@dataclass(frozen=True)
class Results:
    """The results of one command.

    Args:
        name: of the file.
        title: of the results.
        command: the command line.
        commit: the measured commit; with several, what each measured.
        date: of the measurement.
        machine: the machine, and other work on it.
        setting: prompts, sampling and statistics.
        tables: the values.
        notes: remarks.
    """

    name: str
    title: str
    command: str
    commit: str
    date: str
    machine: str
    setting: str
    tables: tuple[ResultsTable, ...]
    notes: tuple[str, ...] = ()

    def table(self, name: str) -> ResultsTable:
        """Return the table of that name.

        Raises:
            UsageError: the table is not known.
        """
        for table in self.tables:
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables)
        raise UsageError(f"results/{self.name}.yaml has no table {name!r}; it has {names}")


def read(name: str) -> Results:
    """Read the results of one file.

    Raises:
        UsageError: the file is missing, lacks a field, or a row is longer or shorter than the columns.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"there are no results {name!r}; {FOLDER} holds {', '.join(all_names())}")
    data = load_yaml(path.read_text(encoding="utf-8"))
    missing = [field for field in FIELDS if not data.get(field)]
    if missing:
        raise UsageError(f"{path}: {missing[0]} is missing; say what made the figures")
    tables = tuple(ResultsTable(item["name"], item["columns"], item["rows"]) for item in data["tables"])
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns) or not all(isinstance(value, str) for value in row):
                raise UsageError(f"{path}: the row {row!r} of {table.name} is not {len(table.columns)} strings")
    texts = {field: str(data[field]).strip() for field in FIELDS[:-1]}
    return Results(name, **texts, tables=tables, notes=tuple(data.get("notes", ())))


def all_names() -> list[str]:
    """Return the names of all results."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def filled(page: str) -> str:
    """Return the page with every marked table replaced by its results.

    Raises:
        UsageError: a mark names results or a table that do not exist.
    """
    return BLOCK.sub(lambda block: block[1] + read(block[2]).table(block[3]).markdown + "\n" + block[5], page)


# A run with engines as results.


IMAGES = ROOT / "docs" / "images"
PICTURES = {"side_by_side.png": "engines.png", "crossover.png": "crossover.png"}
"""Pictures of a run's report, and their names among the images of the documentation."""

READS_GGUF = " OpenVINO and llama.cpp read the Q4_1 file, the others its weights read back."


def of_runs(name: str, runs: Sequence[Store]) -> Results:
    """Return the results of runs of one machine and commit.

    Raises:
        UsageError: the runs are of several commits.
    """
    first = runs[0].manifest
    suite, machine, torch = first.suite.stored(), first.provenance.machine, first.provenance.versions["torch"]
    commits = sorted({_commit(store) for store in runs})
    if len(commits) > 1:
        raise UsageError(f"the runs are of several commits: {', '.join(commits)}; write one after the other, by --name")
    reports = [RunReport(store) for store in runs]
    tables: dict[str, TextTable] = {}
    for report in reports:
        tables |= {"side_by_side": report.beside} if report.store.manifest.cells else {}
        tables |= {f"crossover {number}": table for number, table in enumerate(report.speed_ups, start=1)}
    prompts = ", ".join(f"{task['limit']} prompts of {task['name']}" for task in suite.get("tasks", []))
    engines = {entry["name"] for entry in suite.get("engines", [])}
    return Results(
        name,
        title="; ".join(store.manifest.suite.description or "engines" for store in runs),
        command="; ".join(map(_command, runs)),
        commit=commits[0],
        date=first.created[:10],
        machine=f"{machine['cores']} cores of {machine['cpu']}, torch {torch}, {machine['threads']} threads",
        setting=(
            f"{prompts}, {suite.get('max_new_tokens')} tokens each, ends of text ignored, seconds of whole requests; "
            f"intervals over prompts.{READS_GGUF if engines & {'openvino_genai', 'llama_cpp'} else ''}"
        ),
        tables=tuple(ResultsTable(key, [c.title for c in table.columns], table.rows) for key, table in tables.items()),
        notes=tuple(note for table in tables.values() for note in table.notes),
    )


def _commit(store: Store) -> str:
    commit = store.manifest.provenance.git or {}
    return f"{commit.get('commit', 'unknown')[:7]}{' with changes' if commit.get('dirty') else ''}"


def _command(store: Store) -> str:
    """The command line of a run, without its folder."""
    words = store.manifest.provenance.argv[1:]
    if "--out" in words:
        del words[(place := words.index("--out")) : place + 2]
    return shlex.join(["stride", *(word for word in words if word != "--resume")])


def write_runs(folders: Sequence[str], name: str) -> None:
    """Write the file of that name and the pictures; the first run that has a picture gives it."""
    stores = [Store.open(folder) for folder in folders]
    results = of_runs(name, stores)
    written = {key: value for key, value in asdict(results).items() if key != "name"}
    plain = written | {key: list(written[key]) for key in ("tables", "notes")}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    drawn_of = {table.name.split()[0] for table in results.tables}
    for store, (drawn, image) in itertools.product(reversed(stores), PICTURES.items()):
        if Path(drawn).stem in drawn_of and (store.path / "report" / drawn).is_file():
            shutil.copyfile(store.path / "report" / drawn, IMAGES / image)
    read(name)  # refuses what a page could not quote


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fills in the tables of pages, or writes runs as results.")
    parser.add_argument("paths", nargs="+", help="pages; with --name: runs with engines")
    parser.add_argument("--name", help="of the file of results that the runs become")
    arguments = parser.parse_args()
    if arguments.name:
        write_runs(arguments.paths, arguments.name)
    else:
        for target in map(Path, arguments.paths):
            target.write_text(filled(target.read_text(encoding="utf-8")), encoding="utf-8")
