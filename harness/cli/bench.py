"""`stride bench`: our speed beside a peer's or our own baseline's."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click
import torch
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from stridebench.harness.bench import gpu, peers
from stridebench.harness.cli.main import emit
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.platform.device import check_device
from stridebench.harness.platform.malloc import keep_pages

GPU = "gpu"


@click.command(name="bench")
@click.argument("only", required=False, default="")
@click.option("--pairs", type=click.IntRange(1), default=peers.PAIRS, show_default=True, help="Timed pairs.")
@click.option("--tokens", type=click.IntRange(8), default=32, show_default=True, help="Output tokens of a prompt.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="CPU threads.")
@click.option("--backbone", default="smollm2-135m", show_default=True)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document: [{name, ours, peer, ratio, low, high, unit}]."
)
@click.option("--device", help="Of `stride bench gpu`. Default: cuda where there is one, else cpu.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file of `stride bench gpu`.")
@click.option("--quick", is_flag=True, help="Of `stride bench gpu`: one pair of short decodes of each kind.")
@click.option(
    "--tiny", is_flag=True, help="Of `stride bench gpu`: its suites on tiny models, as of `stride run --tiny`."
)
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="A picture of `stride bench scale`.")
@click.option("--minutes", type=click.FloatRange(0.1), help="Of `stride bench gpu`; 9 unless named.")
def command(
    only: str,
    pairs: int,
    tokens: int,
    threads: int,
    backbone: str,
    as_json: bool,
    device: str | None,
    out: Path | None,
    quick: bool,
    tiny: bool,
    figure: Path | None,
    minutes: float | None,
) -> None:
    """Time methods against transformers' generate in interleaved pairs, and the harness's overhead.

    Trees are timed against our own baseline. ONLY: benchmarks whose name has this part.
    Exit codes: 0 every goal is met, 1 one is missed, 4 one is inconclusive (fewer than 24 pairs, or a wide interval).

    \b
    stride bench
    stride bench prompt_lookup --pairs 48
    stride bench trees
    stride bench windows                          what passes cost here, for methods with sizing: measured
    stride bench quantized --pairs 24             weights in 8 and 4 bits beside bf16: speed, window, laws
    stride bench llama-bench --pairs 24           int4 beside llama.cpp's own benchmark, where that is built
    stride bench startup                          seconds of stride list, of a dry run and of a first token; peak memory
    stride bench scale --figure growth.png        growth by prompts, cells, steps, context and vocabulary; large folders
    stride bench "executors ray"                  two Ray workers against one; "executors slurm": two local jobs
    stride bench gpu --out h100.json              all timings of a GPU in one file; on a CPU a recorder checks
    stride bench gpu --device cpu --quick --tiny --backbone random-llama-1m      every method on the recorder
    stride bench overhead --json
    """
    declare_all()
    keep_pages()
    console = Console(stderr=True, quiet=as_json)
    if only == GPU:
        torch.set_num_threads(threads)
        out, seconds = out or Path("bench-gpu.json"), 60 * (minutes or 9.0)
        if quick:
            chosen = gpu.Settings.quick(_device(device), backbone, seconds)
        else:
            chosen = gpu.Settings(_device(device), backbone, tokens=tokens, seconds=seconds)
            named = click.get_current_context().get_parameter_source("pairs") is not ParameterSource.DEFAULT
            chosen = replace(chosen, pairs=pairs) if named else chosen
        _gpu(replace(chosen, tiny=tiny), out, console, as_json)
        return
    of_gpu = {"device": device, "out": out, "minutes": minutes, "quick": quick, "tiny": tiny}
    if extra := [f"--{name}" for name, given in of_gpu.items() if given]:
        raise UsageError(f"{' and '.join(extra)} belongs to `stride bench {GPU}`; leave it out, or name {GPU}")
    settings = peers.Settings(backbone, pairs, tokens, threads)
    results = []
    for result in peers.run(settings, only, lambda name: console.print(f"timing {name} ...")):
        results.append(result)
        console.print(f"  ratio {result.ratio:.3f}, {result.verdict or 'reported only'}", highlight=False)
    if figure is not None:
        _draw(results, figure)
    if as_json:
        emit([asdict(result) for result in results])
    else:
        _show(results)
    verdicts = {result.verdict for result in results}
    raise SystemExit(1 if "fail" in verdicts else 4 if "inconclusive" in verdicts else 0)


def _draw(results: list[peers.Result], path: Path) -> None:
    """Write the picture of the benchmarks of growth.

    Raises:
        UsageError: none of the results is one.
    """
    from stridebench.reports.growth import draw

    shown = [result for result in results if result.points]
    if not shown:
        raise UsageError("--figure draws how time grows: ask for `stride bench scale`, or a part such as 'by prompts'")
    draw([(r.name, r.points, (r.ratio, r.low, r.high)) for r in shown], path)


def _device(named: str | None) -> str:
    """The device to time; the CPU, whose passes a recorder checks, where there is no GPU."""
    device = named or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    return device


def _gpu(settings: gpu.Settings, out: Path, console: Console, as_json: bool) -> None:
    """Write the file of `stride bench gpu` and print its rows."""
    if settings.tiny:
        from stridebench.harness.cli.tiny_components import make  # trains

        for plan in gpu.plans(settings):
            make(plan)
    document = gpu.run(settings, out, lambda section: console.print(f"timing {section} ..."))
    if as_json:
        emit({**document.head, "rows": document.rows, "left_out": document.left_out})
        return
    table = Table(header_style="bold")
    for column in ("section", "figure", "ours", "peer", "ratio", "unit", "weights"):
        table.add_column(column, overflow="fold")
    for row in gpu.table(document):
        table.add_row(*row)
    shown = Console()
    shown.print(table)
    for entry in document.left_out:
        shown.print(f"not timed: {entry['section']} {entry['name']}: {entry['reason']}", highlight=False, markup=False)
    shown.print(f"passes: {document.head['passes']}; wrote {printable_line(str(out))}", highlight=False, markup=False)


def _show(results: list[peers.Result]) -> None:
    table = Table(header_style="bold")
    for column in ("benchmark", "ours", "peer", "ratio", "unit", "goal", "verdict"):
        table.add_column(column, overflow="fold")
    for row in results:
        peer = "" if row.peer is None else f"{row.peer:.2f}"
        interval = "" if row.low is None else f" [{row.low:.3f}, {row.high:.3f}]"
        ratio = f"{row.ratio:.3f}{interval}"
        table.add_row(row.name, f"{row.ours:.2f}", peer, ratio, row.unit, row.goal, row.verdict)
    console = Console()
    console.print(table)
    for row in results:
        if row.note:
            console.print(f"{row.name}: {row.note}", highlight=False, markup=False)
