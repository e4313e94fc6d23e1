"""`stride report`: tables, plots and pages of finished or half-finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from stridebench.harness.cli import engine_runs
from stridebench.harness.cli.evidence import evidence_of
from stridebench.harness.cli.main import emit, say
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.record.store import Store
from stridebench.reports.run_report import RunReport
from stridebench.reports.tables import html_tables, latex_tables, markdown_of
from stridebench.reports.text_table import print_table

ENDINGS = {"markdown": ".md", "latex": ".tex", "html": ".html"}
FORMS = ("terminal", *ENDINGS)


@click.command(name="report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the files. Default: RUN/report.")
@click.option(
    "--html",
    "pages",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write pages for a browser into this folder instead: index.html, of one or more runs.",
)
@click.option("--paper", help="With --table: a paper's table, printed beside measured. Such as sjdpp.")
@click.option("--table", help="The number of the table, as the paper writes it: 1, or IV.")
@click.option("--format", "form", type=click.Choice(FORMS), default=FORMS[0], help="Of the paper's table.")
@click.option("--figure", help="With --pdf: the figure to write. pareto, or one of a paper such as sjdpp_fig5.")
@click.option("--cells", multiple=True, help="Cells of the figure: an id or label, with * and ?. May be repeated.")
@click.option("--pdf", type=click.Path(path_type=Path, dir_okay=False), help="The figure's file, with its fonts.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document: a row for each cell of a method, then of an engine."
)
def command(
    runs: tuple[Path, ...], out: Path | None, pages: Path | None, as_json: bool, form: str, **asked: Any
) -> None:
    """Print the table of a run, and write its reports.

    Files: the table as Markdown, CSV and LaTeX; the Pareto plot as PNG and SVG; sheets of pictures, meshes and
    transcripts; and for a run of papers/... the paper's tables and figures. The pages of --html work from the disk.

    \b
    stride report runs/quick-20260101-120000
    stride report runs/mine --out docs/mine
    stride report runs/mine --json | jq '.[] | {label, speedup, verdict}'
    stride report runs/mine runs/other --html site      open site/index.html
    stride report runs/mine --paper sjdpp --table 1 --format latex
    stride report runs/mine --figure pareto --cells 'sjd*' --cells autoregressive --pdf front.pdf
    """
    _check(asked, pages, as_json)
    if pages is not None:
        if out is not None:
            raise UsageError("--html names its folder itself; leave --out to a second command")
        say(f"wrote {write_pages(runs, pages)}")
        return
    if len(runs) > 1:
        raise UsageError(f"{len(runs)} runs were named; add --html FOLDER for a page of them all, or name one run")
    run = runs[0]
    if asked["paper"]:
        _paper_table(Store.open(run), asked["paper"], asked["table"], form, out)
        return
    if asked["figure"]:
        from stridebench.reports.publication import write_pdf

        say(f"wrote {write_pdf(Store.open(run), asked['figure'], asked['cells'], asked['pdf'])}")
        return
    store = Store.open(run)
    rows = engine_runs.rows(engine_runs.report(store, as_json, out)) if store.manifest.get("engines") else []
    if store.manifest["cells"] or not rows:
        rows = [*_methods(store, as_json, out or run / "report"), *rows]
    if as_json:
        emit(rows)


def _methods(store: Store, as_json: bool, out: Path) -> list[dict[str, Any]]:
    """Write the methods' reports, and print them unless JSON is asked for; their rows as JSON values."""
    report = RunReport(store)
    written = report.write(out)
    if not as_json:
        report.print()
        say("\n".join(f"wrote {path}" for path in written))
    frame = report.frame
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _check(asked: Mapping[str, Any], pages: Path | None, as_json: bool) -> None:
    """Refuse options that belong to no output, or to two.

    Raises:
        UsageError: says which.
    """
    if asked["paper"] and not asked["table"]:
        from stridebench.reports.papers.one_table import tables_of

        tables_of(asked["paper"])  # an unknown paper is said first
        numbers = ", ".join(map(str, sorted(tables_of(asked["paper"]))))
        raise UsageError(f"--paper {asked['paper']} needs --table; its tables are {numbers}")
    if asked["table"] and not asked["paper"]:
        from stridebench.reports.papers.one_table import keys

        raise UsageError(f"--table needs --paper, one of {', '.join(keys())}")
    if bool(asked["figure"]) != bool(asked["pdf"]):
        raise UsageError("a figure is --figure NAME --pdf FILE, both")
    if asked["cells"] and not asked["figure"]:
        raise UsageError("--cells chooses what --figure draws; add --figure pareto --pdf FILE")
    outputs = [
        word for word, given in (("--paper", asked["paper"]), ("--figure", asked["figure"]), ("--html", pages)) if given
    ]
    if len(outputs) > 1 or (outputs and as_json):
        raise UsageError(
            f"{' and '.join([*outputs, *(['--json'] if as_json else [])])} are different outputs; ask for one"
        )


def _paper_table(store: Store, paper: str, number: str, form: str, out: Path | None) -> None:
    from stridebench.reports.papers.one_table import one_table

    tables = one_table(store, paper, number)
    texts = {
        "markdown": "\n\n".join(map(markdown_of, tables)) + "\n",
        "latex": latex_tables(tables, notes=True),
        "html": "\n".join(html_tables(tables)) + "\n",
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, ending in ENDINGS.items():
            path = out / f"{paper}-table-{number}{ending}"
            path.write_text(texts[name], encoding="utf-8")
            say(f"wrote {path}")
    elif form == "terminal":
        for table in tables:
            print_table(table, Console())
    else:
        click.echo(texts[form], nl=False)


def write_pages(runs: tuple[Path, ...], folder: Path) -> Path:
    """Write the pages of runs; returns index.html.

    Raises:
        UsageError: a package of the extra is not installed, or the folder is a run. StoreError: a run cannot be read.
    """
    for module in ("plotly", "itables"):
        optional(module, "a page for a browser", "html")
    if (folder / "manifest.json").exists():
        raise UsageError(f"{folder} holds a run; name another folder for its pages")
    from stridebench.reports.html import page, text

    text.check_folder(folder)
    return page.write([Store.open(run) for run in runs], folder, evidence_of)
