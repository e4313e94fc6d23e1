"""`stride view`: the pages of all runs of a folder, on the loopback address or another one."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import click

from stridebench.harness.cli.main import say
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional


@click.command(name="view")
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@click.option("--port", default=7474, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: for all machines that reach this one.")
def command(folder: Path, port: int, host: str) -> None:
    """Serve a list of the runs of a folder and their pages to browsers, by default of this machine alone, until ^C.

    A page is written when a browser asks for it. The page of an unfinished run is loaded again when there are new
    results. Runs ticked in the list share a page, and cells ticked there are compared. Nothing is written into the
    runs.

    \b
    stride view
    stride view /data/runs --port 8080
    stride view --host 0.0.0.0                  anybody who reaches the port reads the runs
    """
    for module in ("plotly", "itables"):
        optional(module, "a page for a browser", "html")
    if not host:
        raise UsageError("--host is empty; name an address, or 0.0.0.0 for all of this machine")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name one that holds runs")
    from stridebench.harness.cli.report import evidence_of
    from stridebench.reports.html.server import ADDRESS, serve

    with serve(folder, port, evidence_of, host) as server:
        if host != ADDRESS:
            say(f"anybody who reaches port {server.server_port} of {host} can read these runs", err=True)
        say(f"http://{socket.gethostname() if host == '0.0.0.0' else host}:{server.server_port}/    ^C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
