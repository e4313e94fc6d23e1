"""`stride export`: a cell's outputs as the files that an official evaluation reads; acceptance as other tools do."""

from __future__ import annotations

from pathlib import Path

import click

from stridebench.harness.cli import acceptance_layouts, show_engine
from stridebench.harness.cli.main import say
from stridebench.harness.cli.show import match_name
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.harness.registry import LAYOUTS
from stridebench.harness.run.stored_audit import stored_outputs

PATH = click.Path(path_type=Path)


@click.command(name="export")
@click.argument("run", type=PATH)
@click.argument("cell", required=False)
@click.option(
    "--layout", required=True, help="geneval, dpg, t2i, vbench-like, human-eval, lm-eval; aiperf or golden-al."
)
@click.option("--drafts", type=click.IntRange(1), help="golden-al: the draft length of the servers.")
@click.option("--out", type=PATH, help="A new folder; a file for aiperf and golden-al. Default: below RUN/export.")
def command(run: Path, cell: str | None, layout: str, drafts: int | None, out: Path | None) -> None:
    """Write the outputs of CELL into the folders and files of an official evaluation, and print the command for it.

    The layouts aiperf (a record a request) and golden-al (a mean length) hold the acceptance of a run's engines
    instead; they need no CELL.

    CELL is a cell's id, or parts of it in their order that no other cell has. `stride attach` reads the results.

    \b
    stride export runs/mine sjdpp.lumina --layout geneval
    stride export runs/mine prompt_lookup.T0 --layout human-eval --out judged/
    stride export runs/mine --layout golden-al --drafts 4
    """
    if layout in acceptance_layouts.FILES:
        if cell is not None:
            raise UsageError(f"{layout} holds all engines of a run; leave out {cell!r}")
        say(f"wrote {acceptance_layouts.write(run, layout, drafts, out)}")
        return
    if cell is None:
        raise UsageError(f"{layout} needs a CELL; `stride show {run}` lists them")
    declare_all()
    writer, store = LAYOUTS.get(layout)(), Store.open(run)
    if (name := match_name([*store.cells(), *show_engine.names(store)], cell)) not in store.cells():
        raise UsageError(f"{name} is of an engine; {layout} takes outputs of a method. Its acceptance: --layout aiperf")
    folder = out or run / "export" / layout / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; give another --out, so that no old output is judged")
    outputs = stored_outputs(store, name)
    folder.mkdir(parents=True, exist_ok=True)
    judge = writer.write(outputs, folder)
    say(f"wrote {len(outputs)} outputs of {name} to {folder}")
    say(f"judge them: {judge}")
