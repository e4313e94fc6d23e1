"""`stride import`: acceptance out of other tools' results, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.errors import printable_line
from stridebench.reports.interchange.readers import read, table
from stridebench.reports.text_table import markdown_lines, number


@click.command(name="import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {results}, each with its flaws.")
def command(paths: tuple[Path, ...], as_json: bool) -> None:
    """Read acceptance from results of other tools, in one definition, and name their flaws.

    Read are AIPerf's acceptance records (JSON lines), InferenceX' golden acceptance lengths (YAML), the JSON files of
    `vllm bench serve`, folders of specdec_bench (runs of SPEED-Bench too) and answer files of Spec-Bench. *Length a
    draft* is 1 + accepted / passes with a draft, pooled over requests, and beside it the mean of the requests' means.

    \b
    stride import bench.json golden.yaml answers.jsonl
    stride import results/specdec_bench --json
    """
    results = [read(path) for path in paths]
    rows = table(results)
    if as_json:
        emit({"results": rows})
        return
    names = ("length_per_draft_pooled", "length_per_draft_mean", "told_length", "acceptance")
    titles = ["result", "tool", "of", "requests", "length a draft", "mean of means", "as told", "accepted/drafted"]
    texts = [
        [Path(row["source"]).name, row["tool"], row["label"] or "-", number(row["requests"], 0)]
        + [number(row[name], 3) for name in names]
        for row in rows
    ]
    say("\n".join(markdown_lines(titles, texts)))
    for row in rows:
        for setting, length in (row["golden"] or {}).items():
            say(printable_line(f"{Path(row['source']).name}: {setting} drafts: {length:g}"))
        for flaw in row["flaws"]:
            say(printable_line(f"{Path(row['source']).name}: {flaw}"))
