"""Writes a run of `servers`, or one of `crossover`, as measured results that pages quote.

    python -m stridebench.reports.engine_results runs/servers
    python -m stridebench.reports.engine_results runs/crossover --name crossover

write `reports/data/results/engines.yaml` and `crossover.yaml` (tables side_by_side and crossover N), and
`docs/images/engines.png` and `docs/images/crossover.png`. A page marks the places of the tables; `python -m
stridebench.reports.results README.md docs/engines.md` fills them in. Several runs become one file
if they have one commit.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports import crossover, results, side_by_side
from stridebench.reports.text_table import TextTable

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PICTURES = {"side_by_side.png": "engines.png", "crossover.png": "crossover.png"}
"""Pictures of a run's report, and their names among the images of the documentation."""

READS_GGUF = " OpenVINO and llama.cpp read the Q4_1 file, the others its weights read back."


def document(runs: Sequence[Store]) -> dict[str, Any]:
    """The results of runs of one machine and commit, as `stridebench.reports.results` reads them.

    Raises:
        UsageError: the runs are of several commits.
    """
    first = runs[0].manifest
    suite, machine, torch = first.suite.stored(), first.provenance.machine, first.provenance.versions["torch"]
    commits = sorted({_commit(store) for store in runs})
    if len(commits) > 1:
        raise UsageError(f"the runs are of several commits: {', '.join(commits)}; write one after the other, by --name")
    tables, notes = [], []
    for store in runs:
        if store.manifest.cells:
            tables.append(_entry("side_by_side", side_by_side.table(side_by_side.rows(store))))
        for number, table in enumerate(crossover.text_tables(store), start=1):
            tables.append(_entry(f"crossover {number}", table))
            notes += table.notes
    prompts = ", ".join(f"{task['limit']} prompts of {task['name']}" for task in suite.get("tasks", []))
    engines = {entry["name"] for entry in suite.get("engines", [])}
    return {
        "title": "; ".join(store.manifest.suite.description or "engines" for store in runs),
        "command": "; ".join(map(_command, runs)),
        "commit": commits[0],
        "date": first.created[:10],
        "machine": f"{machine['cores']} cores of {machine['cpu']}, torch {torch}, {machine['threads']} threads",
        "setting": (
            f"{prompts}, {suite.get('max_new_tokens')} tokens each, ends of text ignored, seconds of whole requests; "
            f"intervals over prompts.{READS_GGUF if engines & {'openvino_genai', 'llama_cpp'} else ''}"
        ),
        "tables": tables,
        "notes": notes,
    }


def _commit(store: Store) -> str:
    commit = store.manifest.provenance.git or {}
    return f"{commit.get('commit', 'unknown')[:7]}{' with changes' if commit.get('dirty') else ''}"


def _command(store: Store) -> str:
    """The command line of a run, without its folder."""
    words = store.manifest.provenance.argv[1:]
    if "--out" in words:
        del words[(place := words.index("--out")) : place + 2]
    return shlex.join(["stride", *(word for word in words if word != "--resume")])


def _entry(name: str, table: TextTable) -> dict[str, Any]:
    return {"name": name, "columns": [column.title for column in table.columns], "rows": table.rows}


def main(folders: Sequence[str], name: str = "engines") -> None:
    """Write the file of that name and the pictures; the first run that has a picture gives it."""
    stores = [Store.open(folder) for folder in folders]
    path = results.FOLDER / f"{name}.yaml"
    written = document(stores)
    path.write_text(yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    drawn_of = {table["name"].split()[0] for table in written["tables"]}
    for store, (drawn, image) in itertools.product(reversed(stores), PICTURES.items()):
        if Path(drawn).stem in drawn_of and (store.path / "report" / drawn).is_file():
            shutil.copyfile(store.path / "report" / drawn, IMAGES / image)
    results.read(name)  # refuses what a page could not quote


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes runs with engines as measured results that pages quote.")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--name", default="engines")
    arguments = parser.parse_args()
    main(arguments.runs, arguments.name)
