"""`stride run`: a suite, or methods, backbones and tasks named on the command line."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from harness.cli.main import emit, strict
from harness.core.task import Prompt
from harness.discover import load_all, report
from harness.errors import RunIncomplete, UsageError
from harness.plan import suite
from harness.plan.cells import Cell, Plan, expand
from harness.plan.suite import Resolved
from harness.plan.yaml_lines import Lines
from harness.platform.malloc import keep_pages
from harness.record import provenance
from harness.record.store import Store
from harness.run.executors import EXECUTORS
from harness.run.options import Options
from harness.run.progress import Progress
from harness.run.summary import summary

WARNING = (
    "--allow-code-execution: programs written by a language model will be executed in a child process with limits on "
    "time, memory, files and network. That is a safety net, not a security boundary: run it where nothing can be lost."
)


@click.command(name="run")
@click.argument("name", metavar="[SUITE]", required=False)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Instead of a suite's: NAME, or YAML such as '{name: sjd, window: 8}'.",
)
@click.option("--backbone", "backbones", multiple=True, help="A preset, hub:ORG/NAME, gguf:FILE or a folder.")
@click.option("--task", "tasks", multiple=True, help="NAME, or YAML such as '{name: humaneval, limit: 4}'.")
@click.option("--dtype", "dtypes", multiple=True, help="fp32, bf16, ...; part of each cell's key.")
@click.option("--temperature", "-t", multiple=True, type=float)
@click.option("--max-new-tokens", type=int)
@click.option("--batch", multiple=True, type=int, help="Prompts decoded in lock step; several to sweep.")
@click.option("--limit", type=int, help="Prompts of each task.")
@click.option("--repetitions", type=int)
@click.option("--seed", type=int)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other key of a suite.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder. Default: runs/SUITE-TIME.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out (or the latest of this suite).")
@click.option("--dry-run", is_flag=True, help="List the cells and the reasons of those that are skipped.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--executor", type=click.Choice(list(EXECUTORS)), default="serial", show_default=True)
@click.option("--allow-code-execution", is_flag=True, help="Let tasks execute model output (HumanEval's pass@1).")
@click.option("--append", type=click.Path(path_type=Path), help="Append one JSON line a cell to this history.")
@click.option("--offline", is_flag=True, help="Never download weights.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document: {run, cells, done, failed, malformed, skipped}."
)
def command(name: str | None, **asked: Any) -> None:
    """Run a suite, or what the options name; then print its table and write its plots.

    \b
    stride run quick
    stride run quick --dry-run
    stride run quick --limit 2 --out runs/mine
    stride run papers/sjdpp --backbone embedded-image    ends with the paper's tables, measured beside printed
    stride run quick --out runs/mine --resume            after ^C, a kill or a full disk
    stride run --method sjd --method '{name: sjdpp, reuse: M}' --backbone tabular --task tabular -t 1
    stride run quick --batch 1 --batch 4                 four prompts at a time, beside one
    stride run nightly --append history.jsonl --allow-code-execution
    """
    load_all()
    resolved = _resolve(name, asked)
    plan = expand(resolved)
    if asked["dry_run"]:
        _dry(plan, asked["as_json"])
        return
    if not plan.runnable:
        first = {cell.skip: cell.label for cell in reversed(plan.cells)}
        told = [f"{label}: {why}" for why, label in reversed(first.items())]
        raise UsageError("nothing to run; " + "; ".join(told[:3]))
    check_device(asked["device"])
    if asked["append"]:
        asked["append"].open("a").close()  # an error now rather than after the run
    if asked["allow_code_execution"] and any(use.task.runs_code for use in resolved.tasks):
        click.echo(WARNING, err=True)
    if resolved.suite.threads:
        torch.set_num_threads(resolved.suite.threads)
    keep_pages()
    store = _store(plan, asked)
    with Watch(Console(stderr=True), quiet=asked["as_json"]) as watch:
        options = Options(asked["allow_code_execution"], asked["device"], not asked["offline"], watch)
        EXECUTORS[asked["executor"]](plan, store, options)
    _finish(plan, store, asked)


def _resolve(name: str | None, asked: dict[str, Any]) -> Resolved:
    overrides: dict[str, Any] = {
        key: asked[key] for key in ("max_new_tokens", "repetitions", "seed") if asked[key] is not None
    }
    for setting in asked["settings"]:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: write KEY=VALUE, as in --set top_p=0.9")
        overrides[key] = _yaml(f"--set {key}", value)
    for key in ("methods", "tasks", "backbones"):
        if asked[key]:
            overrides[key] = [_yaml(f"--{key[:-1]}", text) for text in asked[key]]
    if asked["batch"]:
        overrides["batch"] = list(asked["batch"]) if len(asked["batch"]) > 1 else asked["batch"][0]
    if asked["temperature"]:
        overrides["temperature"] = list(asked["temperature"])
    if name is None:
        missing = [f"--{key[:-1]}" for key in ("methods", "backbones", "tasks") if key not in overrides]
        if missing:
            raise UsageError(f"name a suite (see `stride list suites`), or give {', '.join(missing)} too")
        resolved = suite.resolve(_apply(overrides, asked), Lines("command line", None))
    else:
        resolved = suite.load(name, overrides)
        if asked["limit"] is not None or asked["dtypes"]:
            data = _apply(resolved.suite.model_dump(), asked)
            resolved = suite.resolve(data, Lines(name, None, frozenset(overrides)))
    return resolved


def _apply(data: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """--limit into every task, --dtype into every backbone."""
    out = dict(data)
    if asked["limit"] is not None:
        out["tasks"] = [{**_long(task), "limit": asked["limit"]} for task in _list(out["tasks"])]
    if asked["dtypes"]:
        out["backbones"] = [{**_long(entry), "dtype": list(asked["dtypes"])} for entry in _list(out["backbones"])]
    return out


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or does not find here."""
    try:
        if device == "meta":
            raise RuntimeError("nothing is computed on it")
        torch.empty(0, device=device)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)  # events and their clock are of the current device
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"--device {device}: {first}. `stride doctor` shows what this machine has.") from error


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _long(entry: Any) -> dict[str, Any]:
    return dict(entry) if isinstance(entry, dict) else {"name": entry}


def _yaml(option: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{option} {text!r} is not YAML: {getattr(error, 'problem', error)}") from error


def _store(plan: Plan, asked: dict[str, Any]) -> Store:
    manifest = {**plan.manifest(), "provenance": provenance.collect(sys.argv)}
    where = {"device": asked["device"], "machine": manifest["provenance"]["fingerprint"]}
    manifest["key"] = {**manifest["key"], **where, "allow_code_execution": asked["allow_code_execution"]}
    path = asked["out"] or _default(plan.suite.suite.name, asked["resume"])
    if asked["resume"] and (path / "manifest.json").exists():
        return Store.resume(path, manifest)
    return Store.create(path, manifest)


def _default(name: str, resume: bool) -> Path:
    slug = name.replace("/", "-")
    if resume:
        found = sorted(Path("runs").glob(f"{slug}-2*"))
        if not found:
            raise UsageError(f"no run of {name} in ./runs to resume; name its folder with --out")
        return found[-1]
    return Path("runs") / f"{slug}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _dry(plan: Plan, as_json: bool) -> None:
    rows = [plan.meta(cell) for cell in plan.cells]
    if as_json:
        emit({"cells": rows})
        return
    for cell in plan.cells:
        click.echo(f"{cell.id}: {'skipped: ' + cell.skip if cell.skip else 'runs'}")
    decodes = sum(len(plan.prompts[cell.task]) * plan.suite.suite.repetitions for cell in plan.runnable)
    click.echo(f"{len(plan.runnable)} cells, {decodes} decodes of up to {plan.suite.suite.max_new_tokens} tokens")


def _finish(plan: Plan, store: Store, asked: dict[str, Any]) -> None:
    counts = summary(plan, store)
    tables, pareto, frames = report("tables"), report("pareto"), report("summary")
    frame = frames.summarise(store)
    if not counts["done"]:
        reasons = [str(reason) for reason in frame["reason"].dropna()]
        raise UsageError(f"no cell ran: {reasons[0] if reasons else 'none could be finished'}")
    if asked["append"]:
        _append(asked["append"], frame, store)
    folder = store.path / "report"
    written = [*tables.write(store, folder), *pareto.write(frame, folder)]
    written += report("contact_sheets").write(store, folder)
    written += report("papers").write(store, folder)
    if asked["as_json"]:
        emit(counts)
    else:
        tables.terminal(frame, Console())
        report("papers").terminal(store, Console())
        click.echo("\n".join(f"wrote {path}" for path in written))
        told = f"{counts['done']} cells done, {counts['skipped']} skipped, {counts['failed']} failed samples"
        told += f", {counts['malformed']} malformed outputs" if counts["malformed"] else ""
        click.echo(f"run: {store.path} ({told})")
    if counts["done"] + counts["skipped"] < counts["cells"]:
        raise RunIncomplete(f"some cells could not be finished; put that right and use --resume --out {store.path}")
    if "broken" in set(frame["verdict"]) or counts["failed"]:
        raise SystemExit(1)


def _append(path: Path, frame: Any, store: Store) -> None:
    stamp = {
        "run": str(store.path),
        "created": store.manifest["created"],
        "git": store.manifest["provenance"].get("git"),
    }
    rows = [json.dumps(strict({**stamp, **row}), allow_nan=False) for row in frame.to_dict("records")]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(row + "\n" for row in rows))


class Watch(Progress):
    """A progress bar with an ETA on a terminal, a line a stage elsewhere."""

    def __init__(self, console: Console, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(
            *columns, TextColumn("ETA"), TimeRemainingColumn(), console=console, disable=quiet, transient=True
        )
        self._plain = not console.is_terminal and not quiet
        self._task = self._bar.add_task("decoding", total=0)
        self._total = self._count = 0

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a stage."""
        if not self._bar.disable:
            self._bar.console.print(escape(text))

    def expect(self, decodes: int) -> None:
        """Lengthen the bar."""
        self._total += decodes
        self._bar.update(self._task, total=self._total)

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """Move the bar."""
        self._count += 1
        self._bar.update(self._task, advance=1, description=escape(f"{prompt.id} {cell.label}"[:60]))
        if self._plain and self._count % max(1, self._total // 10) == 0:
            self._bar.console.print(f"{self._count}/{self._total} decodes")
