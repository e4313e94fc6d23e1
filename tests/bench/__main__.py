"""Run benchmarks by name: `tox -e bench [-- NAME] [OPTIONS]`, or `python -m tests.bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from stridebench.harness.discover import declare_all
from stridebench.harness.errors import StrideError
from stridebench.harness.machine.device import check_device, keep_pages
from stridebench.harness.record.provenance import machine
from stridebench.harness.train.tiny_components import make
from tests.bench import decoding, gpu, growth, large, reading, startup
from tests.bench.timing import Bench, Row, Settings

NAMED = decoding.NAMED | growth.BENCHMARKS | large.BENCHMARKS | startup.BENCHMARKS | reading.BENCHMARKS | gpu.BENCHMARKS
"""Benchmarks that run only if they are named; ``decoding.BENCHMARKS`` are the others."""


@click.command(name="tox -e bench --")
@click.argument("only", required=False, default="")
@click.option("--pairs", type=click.IntRange(1), default=Settings.pairs, show_default=True, help="Timed pairs.")
@click.option("--tokens", type=click.IntRange(8), default=Settings.tokens, show_default=True, help="Of a prompt.")
@click.option("--threads", type=click.IntRange(1), default=Settings.threads, show_default=True, help="CPU threads.")
@click.option("--backbone", default=Settings.backbone, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--minutes", type=click.FloatRange(0), default=9, show_default=True, help="Then nothing further begins.")
@click.option("--tiny", is_flag=True, help="`gpu methods` on tiny models, as in `stride run --tiny`.")
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="A picture of the slopes (scale by).")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default="bench.jsonl", show_default=True, help="Rows."
)
def main(
    only: str, pairs: int, tokens: int, threads: int, backbone: str, device: str, minutes: float, tiny: bool,
    figure: Path | None, out: Path,
) -> None:  # fmt: skip
    """Time the harness: beside transformers (default), or the benchmarks whose names contain ONLY.

    Names: trees, overhead, windows, quantized, llama-bench, startup, reading (stored runs), scale, executors, and gpu
    with captured passes.
    Every row is appended to --out as soon as it exists.
    Exit codes: 0 every goal is met, 1 one is missed, 4 one is inconclusive (fewer than 24 pairs, or a wide interval).
    """
    declare_all()
    check_device(device)
    keep_pages()
    torch.set_num_threads(threads)
    graphs = only.startswith("gpu")
    settings = Settings(backbone, pairs, tokens, threads, device, graphs, tiny, 60 * minutes)
    console = Console()
    rows = []
    try:
        for row in run(settings, chosen(only), out, lambda name: console.print(f"timing {name} ...")):
            rows.append(row)
            console.print(f"  {row.name}: {_figures(row)} {row.verdict} {row.note}", highlight=False, markup=False)
    except StrideError as error:
        raise click.UsageError(str(error)) from error
    if figure is not None and (grown := [row for row in rows if row.points]):
        growth.draw(grown, figure)
    console.print(table(rows))
    verdicts = {row.verdict for row in rows}
    raise SystemExit(1 if verdicts & {"fail", "error"} else 4 if "inconclusive" in verdicts else 0)


def chosen(only: str) -> dict[str, Bench]:
    """Return the benchmarks whose names contain ``only``.

    Raises:
        click.UsageError: no benchmark has such a name.
    """
    every = decoding.BENCHMARKS | NAMED
    found = {name: act for name, act in (every if only else decoding.BENCHMARKS).items() if only in name}
    found = {name: act for name, act in found.items() if name.startswith("gpu") == only.startswith("gpu")}
    if not found:
        raise click.UsageError(f"no benchmark is called {only!r}; there are {', '.join(every)}")
    return found


def run(settings: Settings, benchmarks: Mapping[str, Bench], out: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of benchmarks, each after it was appended to a file of JSON lines.

    A benchmark that cannot run here, or for which no time is left, is a row with its reason. The first line says what
    the rows were made on.
    """
    _append(out, head(settings))
    if settings.tiny and "gpu methods" in benchmarks:
        for plan in gpu.plans(settings):
            make(plan)
    for name, act in benchmarks.items():
        say(name)
        for row in _rows(name, act, settings):
            _append(out, asdict(row))
            yield row


def _rows(name: str, act: Bench, settings: Settings) -> Iterator[Row]:
    if settings.over:
        yield Row(name, verdict="skipped", note="the time was over")
        return
    try:
        with torch.inference_mode():
            yield from act(name, settings)
    except StrideError as error:
        yield Row(name, verdict="skipped", note=str(error))
    except Exception as error:  # one that breaks must not take the results of the others
        yield Row(name, verdict="error", note=f"{type(error).__name__}: {error}")


def head(settings: Settings) -> dict[str, object]:
    """Return what rows are made on and with."""
    cuda = settings.device.startswith("cuda")
    passes = "CUDA graphs" if cuda else "a recorder in the place of CUDA graphs: no captured pass is one of a GPU"
    name = torch.cuda.get_device_name(settings.device) if cuda else "none: CPU tensors"
    made = datetime.now(UTC).isoformat()
    return {
        "made": made,
        "gpu": name,
        "passes": passes,
        "torch": torch.__version__,
        "machine": machine(),
        **asdict(settings),
    }


def _append(path: Path, body: dict[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(body) + "\n")


def _figures(row: Row) -> str:
    if row.ours is None:
        return ""
    peer = "" if row.peer is None else f" against {row.peer:.3g}"
    ratio = "" if row.ratio is None else f", ratio {row.ratio:.3f}"
    bounds = "" if row.low is None else f" [{row.low:.3f}, {row.high:.3f}]"
    return f"{row.ours:.3g} {row.unit}{peer}{ratio}{bounds}"


def table(rows: list[Row]) -> Table:
    """Return the printed table."""
    shown = Table("benchmark", "figures", "goal", "verdict", header_style="bold")
    for row in rows:
        shown.add_row(row.name, _figures(row), row.goal, row.verdict)
    return shown


if __name__ == "__main__":
    main()
