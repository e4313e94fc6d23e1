"""Serves the pages of a folder of runs on the loopback address: a list of runs, and pages that follow a run."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from harness.errors import StoreError, StrideError
from harness.record.store import Store
from reports.html import assets, page
from reports.html.run_facts import RunFacts

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""What a browser may call this server; another name in a request means that a foreign page sent it here."""


@dataclass(frozen=True)
class Entry:
    """A run of the list; one that cannot be read has the reason in ``problem``."""

    name: str
    suite: str
    created: str
    finished: int
    cells: int
    problem: str = ""


@dataclass
class Library:
    """The runs of a folder, and their pages as they were last written.

    Args:
        folder: holds run folders, or is one.
        site: where pages are written to.
    """

    folder: Path
    site: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def runs(self) -> dict[str, Path]:
        """Folder of each run, by its name in addresses."""
        if (self.folder / "manifest.json").exists():
            return {self.folder.resolve().name or "run": self.folder}
        return {file.parent.name: file.parent for file in sorted(self.folder.glob("*/manifest.json"))}

    def entries(self) -> list[Entry]:
        """The list, the newest run first."""
        return sorted((_entry(name, path) for name, path in self.runs().items()), key=lambda one: one.created)[::-1]

    def pages_of(self, names: tuple[str, ...]) -> str:
        """Write the pages of runs where they are new or have new cells; returns their folder below the site.

        Raises:
            StoreError: there is no such run, or it cannot be read.
        """
        runs = self.runs()
        if unknown := [name for name in names if name not in runs]:
            raise StoreError(f"there is no run {unknown[0]!r} in {self.folder}")
        place = "runs/" + "+".join(quote(name, safe="") for name in names)
        with self._lock:
            stores = [Store.open(runs[name]) for name in names]
            state = tuple(tuple(store.cells()) for store in stores)
            if self._written.get(place) != state:
                page.write(stores, self.site / place)
                self._written[place] = state
        return place

    def write_list(self) -> Path:
        """Write the list of runs."""
        body = (
            page.environment()
            .get_template("runs.html")
            .render(title=str(self.folder), root="", runs=self.entries(), quote=functools.partial(quote, safe=""))
        )
        file = self.site / "index.html"
        file.write_text(body, encoding="utf-8")
        return file


def _entry(name: str, path: Path) -> Entry:
    try:
        store = Store.open(path)
    except StrideError as error:
        return Entry(name, "", "", 0, 0, str(error))
    facts = RunFacts.of(store)
    return Entry(name, facts.name, facts.created, len(store.cells()), len(store.manifest["cells"]))


class Handler(SimpleHTTPRequestHandler):
    """Answers GET with the list, with pages that it writes first, and with their files."""

    server_version = "stridebench"

    def __init__(self, *args: object, library: Library, **kwargs: object) -> None:
        self._library = library
        super().__init__(*args, directory=str(library.site), **kwargs)  # type: ignore[arg-type]  # as the server passes

    def do_GET(self) -> None:
        """Answer one request."""
        if (self.headers.get("Host") or "").rpartition(":")[0] not in NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "this server answers to the loopback address alone")
            return
        address = urlsplit(self.path)
        try:
            if address.path == "/":
                self._library.write_list()
            elif address.path == "/open":
                self._redirect(tuple(dict.fromkeys(parse_qs(address.query).get("run", []))))
                return
        except StrideError as error:
            self.send_error(HTTPStatus.NOT_FOUND, explain=str(error))
            return
        super().do_GET()

    def list_directory(self, path: object) -> None:
        """Refuse."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        """Let no browser keep a page of a run that goes on."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _redirect(self, names: tuple[str, ...]) -> None:
        place = self._library.pages_of(names) if names else ""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/{quote(place, safe='/+')}/index.html" if place else "/")
        self.end_headers()


@contextmanager
def serve(folder: Path, port: int) -> Iterator[ThreadingHTTPServer]:
    """Bind the server of a folder; its pages are removed at the end.

    Raises:
        StoreError: the port is taken.
    """
    with tempfile.TemporaryDirectory(prefix="stride-view-") as site:
        library = Library(folder, Path(site))
        assets.write(Path(site) / "assets")
        handler = functools.partial(Handler, library=library)
        try:
            server = ThreadingHTTPServer((ADDRESS, port), handler)
        except OSError as error:
            raise StoreError(f"port {port} cannot be served: {error}. Choose another with --port.") from error
        with server:
            yield server
