"""`stride run`: reads the options, plans the cells, and lists or runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.discover import catalogue, declare_all
from stridebench.harness.errors import UsageError, number_of, printable_line
from stridebench.harness.machine.surroundings import restored, stdout_on_stderr
from stridebench.harness.plan import presets
from stridebench.harness.plan.budget import described, foreseen
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.compatibility import WORDS, Outcome, Outcomes
from stridebench.harness.plan.estimate import estimate
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.resolve import suite_to_run, task_of
from stridebench.harness.plan.suite import ENTRIES, duration_words
from stridebench.harness.plan.yaml_lines import option_settings, option_value
from stridebench.harness.run.engine_runner import with_obstacles

NUMBERS = {
    "max_new_tokens": "--max-new-tokens",
    "repetitions": "--repetitions",
    "seed": "--seed",
    "budget": "--budget",
}
"""Keys of a suite that an option replaces by one value."""
SWEEPS = {"temperature": "--temperature", "batch": "--batch"}
"""Keys of a suite that an option replaces by one value or several."""


class Folder(click.Path):
    """A path or a URL. An empty path is refused, since it would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; name a folder", param, ctx)
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)


@click.command(name="run")
@click.argument("name", metavar="[SUITE]", required=False)
@click.option("--only", default="", metavar="NAME", help="A variant of the suite; see `stride list suites`.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Replaces the suite's methods: NAME, or YAML such as '{name: sjd, window: 8}'.",
)
@click.option(
    "--backbone",
    "backbones",
    multiple=True,
    help="As --method: a preset, hub:ORG/NAME, gguf:FILE or a folder.",
)
@click.option(
    "--task", "tasks", multiple=True, help="As --method: NAME, or YAML such as '{name: humaneval, limit: 4}'."
)
@click.option(
    "--prompts",
    multiple=True,
    type=Folder(path_type=Path, exists=True, dir_okay=False),
    help="Your prompts instead of a task, in a file or at a URL. If --backbone is given, no suite is needed.",
)
@click.option("--dtype", "dtypes", multiple=True, help="Of all backbones: fp32, bf16, fp16, fp64 or native.")
@click.option("--temperature", "-t", multiple=True, type=float, help="0 is greedy; several to sweep.")
@click.option("--max-new-tokens", type=int, help="Output tokens of a prompt, at most.")
@click.option("--batch", multiple=True, type=int, help="Prompts decoded in lock step; several to sweep.")
@click.option("--limit", type=int, help="Number of prompts of each task; instead of a budget.")
@click.option(
    "--budget",
    metavar="TIME",
    help="Time such as 90s or 10m in which the run ends: it measures this machine, and chooses prompts and cells.",
)
@click.option("--repetitions", type=int, help="Decodes of each prompt, with different seeds.")
@click.option("--seed", type=int, help="Seed of all draws.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of a suite, such as top_p=0.9 or tasks.coco.reference=FOLDER.",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="[LABEL=]URL",
    help="A running server for an engine of the suite, instead of one that the run starts.",
)
@click.option(
    "--out",
    type=Folder(path_type=Path),
    help="Run folder, or a URL such as s3://bucket/run. Default: runs/SUITE-TIME.",
)
@click.option("--resume", is_flag=True, help="Continue the run in --out (or the latest of this suite).")
@click.option("--tiny", is_flag=True, help="Tiny models of random weights instead of published ones; see above.")
@click.option("--dry-run", is_flag=True, help="List the cells, and why some are skipped; decode nothing.")
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cuda.")
@click.option(
    "--executor",
    type=click.Choice(catalogue()["executors"]),
    default="serial",
    show_default=True,
    help="ray: workers of a Ray cluster; slurm: jobs of Slurm.",
)
@click.option(
    "--executor-option",
    "executor_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the executor, such as workers=4, retries=2 or slurm_partition=gpu.",
)
@click.option("--allow-code-execution", is_flag=True, help="Let tasks execute model output (HumanEval's pass@1).")
@click.option("--append", type=click.Path(path_type=Path), help="Append one JSON line for each cell to this file.")
@click.option("--offline", is_flag=True, help="Never download weights.")
@json_option("{run, cells, done, failed, malformed, skipped}")
def command(name: str | None, **options: Any) -> None:
    """Run a suite, or the methods, backbones and tasks of the options; print the table and write the plots.

    A cell is one method on one backbone, dtype, task and temperature.

    --tiny tries a suite out without its models and data: published models become stand-ins of the same family, one
    prompt of each benchmark comes with the package, and missing heads, drafters and adapters learn for a few steps.
    Each task has one prompt and one repetition; --limit and --repetitions ask for more. Its figures mean nothing.

    \b
    stride run quick
    stride run quick --dry-run
    stride run quick --limit 2 --out runs/mine
    stride run quick --budget 10m                        more prompts in more time
    stride run papers/sjdpp --backbone embedded-image    also the paper's tables, printed and measured
    stride run --out runs/mine --resume                  after ^C, a kill or a full disk
    stride run --method sjd --method '{name: sjdpp, reuse: M}' --backbone tabular --task tabular -t 1
    stride run quick --batch 1 --batch 4                 four prompts at a time, and one
    stride run --backbone ./my-model --prompts mine.jsonl
    stride run papers/sjdpp --only real --tiny           does the suite run from end to end
    stride run servers --url vLLM=http://127.0.0.1:8000    a server that runs, for one engine of the suite
    stride run nightly --append history.jsonl --allow-code-execution
    """
    with restored(), stdout_on_stderr():  # methods and tasks of plugins are imported here
        declare_all()
        out, resume = options["out"], options["resume"]
        options["executor_options"] = executor_values(options["executor_options"])
        if options["executor_options"]:
            from stridebench.harness.run.workers.pool import check  # imports pandas

            check(options["executor"], options["executor_options"])
        plan = with_obstacles(expand(suite_to_run(name, read(options), out, resume)), out, resume)
        outcomes: Mapping[str, Outcome] = {}
        if options["dry_run"]:
            plan = foreseen(plan)
            outcomes = _outcomes(plan)
    for use, prompts in plan.prompts.items():
        if reading := use.task.reading(prompts):
            say(printable_line(reading), err=True)
    if options["dry_run"]:
        _print_plan(plan, outcomes, options["as_json"])
        _refuse_idle(plan, outcomes)
        return
    from stridebench.execution import RunRequest  # imports torch and pandas, which a dry run does not need
    from stridebench.harness.cli.run_plan import execute

    if options["tiny"]:
        from stridebench.harness.train.tiny_components import make

        plan = make(plan, lambda text: say(text, err=True))
    execute(plan, RunRequest(**{field: options[field] for field in RunRequest.__dataclass_fields__}), options)


def read(arguments: Mapping[str, Any]) -> Overrides:
    """Return the keys of a suite that the options replace; each error names its option."""
    values: dict[str, Any] = {key: arguments[key] for key in NUMBERS if arguments[key] is not None}
    options = {**NUMBERS, **ENTRIES, **SWEEPS}
    given = option_settings("--set", arguments["settings"], "top_p=0.9")
    if twice := [key for key in given if key in options and arguments[key] not in (None, ())]:
        raise UsageError(f"{options[twice[0]]} and --set {twice[0]} both give {twice[0]}; leave out one of them")
    values |= given
    options |= {key: f"--set {key}" for key in given}
    for key, option in ENTRIES.items():
        if arguments[key]:
            values[key] = [option_value(option, text) for text in arguments[key]]
            options[key] = option
    if files := arguments["prompts"]:
        if "tasks" in values:
            raise UsageError(f"--prompts is a task; give it or {options['tasks']}, not both")
        if len(files) > 1:
            raise UsageError(f"--prompts is given {len(files)} times; put the prompts into one file")
        values["tasks"] = task_of(files[0])
        options["tasks"] = "--prompts"
    for key, option in SWEEPS.items():
        if arguments[key]:
            sweep = list(arguments[key])
            values[key] = sweep if key == "temperature" or len(sweep) > 1 else sweep[0]
            options[key] = option
    return Overrides(
        values,
        arguments["limit"],
        arguments["dtypes"],
        {key: options[key] for key in values},
        arguments.get("tiny", False),
        arguments.get("device", "cpu"),
        tuple(arguments.get("urls", ())),
        arguments.get("only", ""),
    )


def executor_values(texts: tuple[str, ...]) -> dict[str, object]:
    """Return the values of --executor-option."""
    return option_settings("--executor-option", texts, "workers=4")


def _refuse_idle(plan: Plan, by_cell: Mapping[str, Outcome]) -> None:
    """Refuse a plan that cannot run, as its run would after it has tried to load the models.

    If all cells are skipped (because prompts are not here, say), that is not an error: the list says why.
    """
    outcomes = [by_cell[cell.id] for cell in plan.runnable]
    cannot = [outcome.reason for outcome in outcomes if outcome.word == "cannot"]
    if cannot and len(cannot) == len(outcomes) and not plan.runnable_engines:
        raise UsageError(f"no cell can run: {cannot[0]}")


def _print_plan(plan: Plan, by_cell: Mapping[str, Outcome], as_json: bool) -> None:
    running = [cell for cell in plan.cells if by_cell[cell.id].word != "cannot"]
    most = estimate(plan, [*running, *plan.runnable_engines])
    if as_json:
        rows = [(plan.meta(cell), by_cell[cell.id]) for cell in plan.cells]
        cells = [{**row.stored(), "outcome": outcome.word, "command": outcome.command} for row, outcome in rows]
        engines = [
            {"cell": cell.id, "label": cell.label, "load": cell.load, "skip": cell.skip} for cell in plan.engines
        ]
        emit({"cells": cells, "estimate": asdict(most), **({"engines": engines} if engines else {})})
        return
    if lines := described(plan):
        say("\n".join(["the run measures this machine first; on a CPU that reads 6 GB/s it would choose", *lines]))
    for cell, outcome in by_cell.items():
        say(f"{cell}: {outcome.text}")
    for engine in plan.engines:
        say(f"{engine.id}: {engine.skip or 'runs'}")
    counts = Counter(outcome.word for outcome in by_cell.values())
    counts.update("cannot" if engine.skip else "runs" for engine in plan.engines)
    say(", ".join(f"{counts[word]} {word}" for word in WORDS))
    if any(outcome.command.startswith("stride fetch") for outcome in by_cell.values()):
        say("stride run fetches the weights that stride fetch names, unless --offline")
    count = len(running) + len(plan.runnable_engines)
    if not count:
        return
    say(f"{number_of(count, 'cell')}, {number_of(most.decodes, 'decode')} of up to {most.tokens} tokens together")
    if most.seconds is not None:
        machine = "on a CPU that reads 6 GB/s, at one token a pass, with proofs and report"
        say(f"about {duration_words(most.seconds)} {machine}")
    for name in most.unsized:
        say(f"the picture of {name} is known when it is loaded; until then its budget counts")


def _outcomes(plan: Plan) -> dict[str, Outcome]:
    """Return the outcome of each cell, by its id."""
    outcomes, specs = Outcomes(), {cell.backbone: presets.resolve(cell.backbone) for cell in plan.cells}
    return {
        cell.id: Outcome("cannot", cell.skip) if cell.skip else outcomes.of(cell.planned, specs[cell.backbone])
        for cell in plan.cells
    }
