"""Writes a run of `servers`, and one of `crossover`, as measured results that pages quote.

    python -m reports.engine_results runs/servers runs/crossover

writes `reports/data/results/engines.yaml` (tables side_by_side and crossover N), `docs/images/engines.png` and
`docs/images/crossover.png`. A page marks their places; `python -m reports.results README.md docs/engines.md` fills
them in.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.record.store import Store
from reports import crossover, results, side_by_side
from reports.text_table import TextTable

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PICTURES = {"side_by_side.png": "engines.png", "crossover.png": "crossover.png"}
"""Pictures of a run's report, and their names among the images of the documentation."""


def document(runs: Sequence[Store]) -> dict[str, Any]:
    """The results of runs of one machine and commit, as `reports.results` reads them."""
    first = runs[0].manifest
    provenance, suite = first["provenance"], first.get("suite") or {}
    machine, torch, commit = provenance["machine"], provenance["versions"]["torch"], provenance["git"]
    names = [str((store.manifest.get("suite") or {}).get("name", "SUITE")) for store in runs]
    tables = []
    for store in runs:
        if store.manifest["cells"]:
            tables.append(_entry("side_by_side", side_by_side.table(side_by_side.rows(store))))
        for number, table in enumerate(crossover.text_tables(store), start=1):
            rows = [*table.rows, *([note, ""] for note in table.notes)]
            tables.append(_entry(f"crossover {number}", TextTable(table.title, table.columns, rows, [])))
    return {
        "title": "Engines beside our own methods on SmolLM2-135M, and where speculation stops to pay",
        "command": "; ".join(f"stride run {name}" for name in names),
        "commit": f"{commit.get('commit', 'unknown')[:7]}{' with changes' if commit.get('dirty') else ''}",
        "date": first["created"][:10],
        "machine": f"{machine['cores']} cores of {machine['cpu']}, torch {torch}, {machine['threads']} threads",
        "setting": (
            f"{suite.get('max_new_tokens')} tokens a prompt, ends of text ignored, seconds of whole requests; "
            "intervals over prompts. OpenVINO and llama.cpp read the Q4_1 file, the others its weights read back."
        ),
        "tables": tables,
    }


def _entry(name: str, table: TextTable) -> dict[str, Any]:
    return {"name": name, "columns": [column.title for column in table.columns], "rows": table.rows}


def main(folders: Sequence[str]) -> None:
    """Write the file and the pictures; the first run that has a picture gives it."""
    stores = [Store.open(folder) for folder in folders]
    path = results.FOLDER / "engines.yaml"
    path.write_text(yaml.safe_dump(document(stores), sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    for store, (drawn, name) in itertools.product(reversed(stores), PICTURES.items()):
        if (store.path / "report" / drawn).is_file():
            shutil.copyfile(store.path / "report" / drawn, IMAGES / name)
    results.read("engines")  # refuses what a page could not quote


if __name__ == "__main__":
    main(sys.argv[1:])
