"""`stride history`: figures of a suite night by night, and where they changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.paths import LocalPath
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.reports.history import report
from stridebench.reports.history.series import METRICS, read, series


@click.command(name="history")
@click.argument("folder", type=LocalPath(), metavar="DIR")
@click.option("--metric", "metrics", multiple=True, help="Only this metric, such as acceptance; may be repeated.")
@click.option("--out", type=LocalPath(), help="Folder of history.md and history.png. Default: DIR.")
@click.option("--html", "pages", type=LocalPath(), help="Write a page for a browser into this folder instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {series}, each with its changes and verdict.")
def command(folder: Path, metrics: tuple[str, ...], out: Path | None, pages: Path | None, as_json: bool) -> None:
    """Table and figure of each metric of each cell over the nights of a history, with its change points.

    A change is named with the commits before and after it. It is found on the third night after a step, and one odd
    night is none. DIR holds the lines of `stride nightly` or `stride run --append`; a single file is read as well.

    A series of fewer than six nights, or without a value in the latest ones, is inconclusive. Exit codes: 0, 4 where no
    figure of several nights has a value in two of them, 2 error.

    \b
    stride history nights
    stride history nights --metric acceptance --json
    stride history nights --html site                   open site/index.html
    """
    if wrong := [name for name in metrics if name not in METRICS and not name.startswith(("score.", "set."))]:
        raise UsageError(f"no metric {wrong[0]!r:.60}; there are {', '.join(METRICS)}, and score.NAME and set.NAME")
    lines = read(folder)
    results = report.findings([one for one in series(lines) if not metrics or one.metric in metrics])
    if as_json:
        emit({"series": report.document(results)})
    else:
        _write(results, folder, out, pages)
    nights = {line["created"] for line in lines}
    raise SystemExit(4 if len(nights) > 1 and not results else 0)


def _write(results: Sequence[report.Finding], folder: Path, out: Path | None, pages: Path | None) -> None:
    """Write the page for a browser, or the table and the figure; say where."""
    if pages is not None:
        for module in ("plotly", "itables"):
            optional(module, "a page for a browser", "html")
        from stridebench.reports.html import history
        from stridebench.reports.html import text as assets

        assets.check_folder(pages)
        say(f"wrote {history.write(results, str(folder), pages)}")
        return
    place = out or (folder if folder.is_dir() else folder.parent)
    place.mkdir(parents=True, exist_ok=True)
    text = "\n".join(report.table(results))
    (place / "history.md").write_text(text + "\n", encoding="utf-8")
    say(text)
    drawn = report.figure(results, place / "history.png")
    say("\n".join(f"wrote {path}" for path in (place / "history.md", drawn) if path is not None))
