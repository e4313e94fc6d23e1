"""`stride report`: tables, plots and pages of finished or half-finished runs, and differences between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.metrics import REFUTED
from stridebench.harness.record.store import Store
from stridebench.reports.run_report import RunReport
from stridebench.reports.tables import check_columns
from stridebench.reports.text_table import Column, TextTable, html_tables, latex_tables, markdown_of, print_table, word

if TYPE_CHECKING:
    from stridebench.reports.html.figures import Chart

ENDINGS = {"markdown": ".md", "latex": ".tex", "html": ".html"}
FORMS = ("terminal", *ENDINGS)
NO_BETS = "the run stored only the e-value, and not the bets on each output"
POINTS = 200
"""Outputs of a curve of e-values; of more outputs, equally spaced ones and the last are drawn."""


@click.command(name="report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the files. Default: RUN/report. With --against: a Markdown file.",
)
@click.option("--against", type=click.Path(path_type=Path), help="Compare the runs with this one instead.")
@click.option("--consumption", is_flag=True, help="With --against: memory and energy too, if both runs have them.")
@click.option(
    "--html",
    "pages",
    type=click.Path(path_type=Path),
    help="Write pages for a browser into this folder instead, of one or more runs; or one file that ends in .html.",
)
@click.option("--paper", help="With --table: a paper's table, printed and measured. Such as sjdpp.")
@click.option("--table", help="The number of the table, as the paper writes it: 1, or IV.")
@click.option("--format", "form", type=click.Choice(FORMS), default=FORMS[0], help="Print the tables in this form.")
@click.option("--columns", metavar="NAME,...", help="Of the table, such as verdict,speedup,tau. Default: all that fit.")
@click.option("--latex", type=click.Path(path_type=Path, dir_okay=False), help="Write one table for a paper.")
@click.option("--label", default="", help="With --latex: of the table, for \\ref.")
@click.option("--figure", help="With --pdf: forest, pareto, loss, or a figure of a paper such as sjdpp_fig5.")
@click.option("--width", type=click.Choice(["page", "column"]), default="page", help="column: 3.3 inches, for forest.")
@click.option("--cells", multiple=True, help="Cells of the figure: an id or label, with * and ?. May be repeated.")
@click.option("--pdf", type=click.Path(path_type=Path, dir_okay=False), help="The figure's file, with its fonts.")
@click.option("--what-if", is_flag=True, help="Weigh other verifiers, lengths and policies of the run's drafters.")
@click.option("--plots", is_flag=True, help="Draw the plots even if the folder holds plots of the same figures.")
@json_option("a row for each cell, or setting of --what-if. With --against: {runs, rows, only_a, ...}")
def command(
    runs: tuple[Path, ...],
    out: Path | None,
    against: Path | None,
    consumption: bool,
    pages: Path | None,
    as_json: bool,
    form: str,
    **asked: Any,
) -> None:
    """Print the table of a run, and write its reports.

    Files: the table as Markdown, CSV and LaTeX; the forest plot as PNG and SVG, and if an approximate method is swept
    its speed against its quality; sheets of pictures, meshes and transcripts; and for a run of papers/... the paper's
    tables and figures. The pages of --html work from the disk.

    With --what-if, the run's weights read the texts of its autoregressive baselines again, with each drafter of a cell
    of speculative. From that follow the tokens a step of every verifier, length and policy, without decoding and
    without chance, and the time by the run's own passes. Texts of other temperatures do not count.

    With --against, cells of equal configuration are compared over prompts that both runs finished, paired by prompt and
    seed, with intervals. The strongest evidence comes first. A cell without a partner is named with the reason. Times
    are compared on equal machines only.

    \b
    stride report runs/quick-20260101-120000
    stride report runs/mine --out docs/mine
    stride report runs/mine --json | jq '.[] | {label, speedup, verdict}'
    stride report runs/mine runs/other --html site      open site/index.html
    stride report runs/mine --html mine.html            one file to send, of one run
    stride report runs/mine --paper sjdpp --table 1 --format latex
    stride report runs/after --against runs/before
    stride report runs/tuesday runs/wednesday --against runs/monday --json
    stride report runs/mine --latex table.tex --columns verdict,speedup,tau,tv --label tab:speed
    stride report runs/mine --figure forest --width column --pdf forest.pdf
    stride report runs/mine --what-if
    stride report runs/mine --figure loss --pdf loss.pdf
    stride report runs/mine --figure pareto --cells 'sjd*' --cells autoregressive --pdf sweep.pdf
    """
    _check(asked, pages, form, as_json)
    if against is not None:
        if pages is not None or any(asked[key] for key in ("paper", "figure", "latex", "columns", "plots", "what_if")):
            raise UsageError("--against prints differences; ask for pages, tables or figures of one run separately")
        if form != FORMS[0]:
            raise UsageError(f"--against knows no --format {form}; --out FILE.md writes the differences as Markdown")
        _compare([against, *runs], consumption, out, as_json)
        return
    if consumption:
        raise UsageError("--consumption is compared between runs; add --against RUN")
    if pages is not None:
        if out is not None:
            raise UsageError("--html names its folder itself; leave --out to a second command")
        say(f"wrote {write_pages(runs, pages)}")
        return
    if len(runs) > 1:
        raise UsageError(
            f"{len(runs)} runs were named; add --html FOLDER for a page of them all, --against RUN to compare them, or "
            f"name one run"
        )
    run = runs[0]
    if asked["paper"]:
        _paper_table(Store.open(run), asked["paper"], asked["table"], form, out)
        return
    if asked["figure"]:
        from stridebench.reports.publication import write_pdf

        if out is not None:
            raise UsageError("--figure writes --pdf alone; leave --out to a second command")
        column = asked["width"] == "column"
        say(f"wrote {write_pdf(Store.open(run), asked['figure'], asked['cells'], asked['pdf'], column)}")
        return
    if asked["what_if"]:
        if out is not None:
            raise UsageError("--what-if writes no files; leave --out to a second command")
        _what_if(Store.open(run), as_json)
        return
    if out is not None and (as_json or asked["latex"] or form != FORMS[0]):
        raise UsageError("--out is the folder of the report's files; --json, --latex and --format write none there")
    report = RunReport(Store.open(run))
    if as_json:
        emit(report.rows)
        return
    columns = [name.strip() for name in (asked["columns"] or "").split(",") if name.strip()]
    check_columns(columns, report.frame, report.engines)  # before anything is written
    if asked["latex"] is not None:
        asked["latex"].write_text(report.latex(columns, asked["label"]), encoding="utf-8")
        say(f"wrote {asked['latex']}")
        return
    if form != FORMS[0]:
        click.echo(_texts(report.tables(columns))[form], nl=False)
        return
    folder = out or report.store.path / "report"
    written = report.write(folder, asked["plots"])
    if out is None and report.store.manifest.engines:
        report.store.publish("report")
    report.print(columns)
    say("\n".join(f"wrote {path}" for path in written))


def _check(asked: Mapping[str, Any], pages: Path | None, form: str, as_json: bool) -> None:
    """Refuse options that do not belong to one output."""
    if asked["paper"] and not asked["table"]:
        from stridebench.reports.papers.report import tables_of

        tables_of(asked["paper"])  # an unknown paper is an error first
        numbers = ", ".join(map(str, sorted(tables_of(asked["paper"]))))
        raise UsageError(f"--paper {asked['paper']} needs --table; its tables are {numbers}")
    if asked["table"] and not asked["paper"]:
        from stridebench.reports.papers.report import keys

        raise UsageError(f"--table needs --paper, one of {', '.join(keys())}")
    if bool(asked["figure"]) != bool(asked["pdf"]):
        raise UsageError("a figure is --figure NAME --pdf FILE, both")
    if asked["width"] == "column" and asked["figure"] is None:
        raise UsageError("--width is that of a figure; add --figure forest --pdf FILE")
    if asked["cells"] and not asked["figure"]:
        raise UsageError("--cells chooses what --figure draws; add --figure pareto --pdf FILE")
    other = {"--paper": asked["paper"], "--figure": asked["figure"], "--html": pages, "--json": as_json}
    table = {"--latex": asked["latex"], "--format": form != FORMS[0] and not asked["paper"]}
    outputs = [word for word, given in (other | table | {"--plots": asked["plots"]}).items() if given]
    outputs += ["--what-if"] if asked["what_if"] and outputs != ["--json"] else []
    if len(outputs) > 1:
        raise UsageError(f"{' and '.join(outputs)} are different outputs; ask for one")
    if asked["columns"] and (any(other.values()) or asked["what_if"]):
        raise UsageError(f"--columns chooses columns of the run's table; {outputs[0]} has its own")
    if asked["label"] and not asked["latex"]:
        raise UsageError("--label goes into the table of --latex FILE")


def _paper_table(store: Store, paper: str, number: str, form: str, out: Path | None) -> None:
    from stridebench.reports.papers.report import one_table

    tables = one_table(store, paper, number)
    texts = _texts(tables)
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


def _texts(tables: Sequence[TextTable]) -> dict[str, str]:
    """Return tables in every form but the terminal's."""
    return {
        "markdown": "\n\n".join(map(markdown_of, tables)) + "\n",
        "latex": latex_tables(tables, notes=True),
        "html": "\n".join(html_tables(tables)) + "\n",
    }


def write_pages(runs: tuple[Path, ...], folder: Path) -> Path:
    """Write the pages of runs, and return the path of index.html; or one file, if its name ends in .html."""
    if folder.suffix == ".html":
        from stridebench.reports.html.page import write_file

        if len(runs) > 1 or folder.is_dir():
            why = "is a folder" if folder.is_dir() else f"holds one run, and {len(runs)} are named"
            raise UsageError(f"{folder} {why}; name a file for one run, or a folder without .html for pages of several")
        return write_file(Store.open(runs[0]), folder)
    for module in ("plotly", "itables"):
        optional(module, "a page for a browser", "html")
    if (folder / "manifest.json").exists():
        raise UsageError(f"{folder} holds a run; name another folder for its pages")
    from stridebench.reports.html import page, text

    text.check_folder(folder)
    return page.write([Store.open(run) for run in runs], folder, evidence_of)


def _compare(runs: list[Path], consumption: bool, out: Path | None, as_json: bool) -> None:
    """Print how runs differ from the first one."""
    from stridebench.reports.gate import compare

    names = tuple(map(str, runs))
    comparison = compare.compare(*(Store.open(run) for run in runs), consumption=consumption)
    if out:
        out.write_text(compare.markdown(comparison, names), encoding="utf-8")
    if not as_json:
        compare.terminal(comparison, Console(), names)
        return
    frame = comparison.frame.astype(object).where(comparison.frame.notna(), None)
    only = {"only_a": comparison.only_a, "only_b": comparison.only_b}
    letters = dict(zip(("a", *comparison.runs), names, strict=True))
    emit({"runs": letters, "rows": frame.to_dict("records"), **only, "notes": comparison.notes})


WEIGHED = (
    Column("setting", "setting", rank=0, formatter=word("setting")),
    Column("tau", "tokens a step", rank=0),
    Column("drafted", "drafts a step", rank=2),
    Column("draft_nfe", "drafter passes a step", rank=3),
    Column("ms_per_token", "ms a token", rank=1),
    Column("speedup", "speed-up", rank=1),
    Column("regret", "to the best fixed length", rank=1, formatter=lambda row: signed_percent(row["regret"])),
)


def signed_percent(share: Any) -> str:
    """Return a share as percent with its sign; "-" if there is none."""
    return "-" if share is None else f"{share:+.1%}"


def _what_if(store: Store, as_json: bool) -> None:
    """Print a table of weighed settings for each drafter and baseline."""
    from stridebench.replaying import foreseen_settings
    from stridebench.reports.predict import weighed

    by_cell: dict[str, dict[str, Any]] = {}
    for one in foreseen_settings(store):
        by_cell.setdefault(one.cell, {})[one.label] = one.outputs
    frames = [weighed(store, cell, settings) for cell, settings in by_cell.items()]
    if as_json:
        emit([row for frame in frames for row in frame.to_dict("records")])
        return
    for cell, frame in zip(by_cell, frames, strict=True):
        meta = store.meta(cell)
        title = f"{meta.backbone} {meta.dtype}, {meta.sampling.words}, {meta.task}: along the texts of the baseline"
        rows = [[column.text(row) for column in WEIGHED] for row in frame.to_dict("records")]
        print_table(TextTable(title, WEIGHED, rows, []), Console())


def evidence_of(cell: SealedCell) -> Chart | str | None:
    """Return the chart of a stored cell's e-value after each of its outputs, which needs no weights.

    If the run lacks the bets, return the reason; if the cell was not audited, return None.
    """
    if cell.meta.audit_log_e is None:
        return None
    counted = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    stored = [json.loads(text) if isinstance(text, str) else {} for text in counted.get("audit", ())]
    audited = [bets for bets, tokens in zip(stored, counted["tokens"], strict=False) if len(tokens)]
    if not audited or any("gains" not in bets for bets in audited):
        return NO_BETS
    from stridebench.harness.audit.bets import Bets
    from stridebench.harness.audit.verdict import evidence_path
    from stridebench.reports.html.figures import evidence_chart

    path = evidence_path([Bets.of(bets) for bets in audited])
    drawn = [*path[: -1 : max(1, len(path) // POINTS)], path[-1]]
    refuted = cell.meta.audit_threshold or REFUTED
    return evidence_chart([0, *(tokens for tokens, _ in drawn)], [0.0, *(log_e for _, log_e in drawn)], refuted)
