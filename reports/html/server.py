"""Serves the pages of a folder of runs on the loopback address: a list of runs, and pages that follow a run."""

from __future__ import annotations

import functools
import hashlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from stridebench.harness.errors import StoreError, StrideError
from stridebench.harness.record.store import Store
from stridebench.reports.html import page, text
from stridebench.reports.html.cell_facts import RunFacts

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""Names that a browser may use for this server; another name means that a foreign page sent the request."""


@dataclass(frozen=True)
class ListedRun:
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
        curve: of the e-value of a cell.
    """

    folder: Path
    site: Path
    curve: page.Curve | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[str, tuple[str, str]] = field(default_factory=dict)

    def runs(self) -> dict[str, Path]:
        """Folder of each run, by its name in addresses."""
        if (self.folder / "manifest.json").exists():
            return {self.folder.resolve().name or "run": self.folder}
        return {file.parent.name: file.parent for file in sorted(self.folder.glob("*/manifest.json"))}

    def entries(self) -> list[ListedRun]:
        """The list, the newest run first."""
        return sorted((_entry(name, path) for name, path in self.runs().items()), key=lambda one: one.created)[::-1]

    def pages_of(self, names: tuple[str, ...]) -> str:
        """Write the pages of runs if they are new or have new cells; returns their folder below the site.

        Raises:
            StoreError: the run does not exist, or cannot be read.
        """
        return self._pages("runs/" + "+".join(quote(name, safe="") for name in names), names, ())

    def compared(self, cells: tuple[str, ...]) -> str:
        """Write the page of picked cells, each as RUN/CELL; returns its folder below the site.

        Raises:
            StoreError: the run or cell does not exist, or cannot be read.
        """
        pairs = [cell.partition("/")[::2] for cell in cells]
        names = tuple(dict.fromkeys(run for run, _ in pairs))
        stores = dict(zip(names, self._stores(names), strict=True))
        if unknown := [cell for (run, cell), _ in zip(pairs, cells, strict=True) if cell not in stores[run].cells()]:
            raise StoreError(f"there is no finished cell {unknown[0]!r} in these runs")
        place = "compared/" + hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]
        return self._pages(place, names, tuple((names.index(run), cell) for run, cell in pairs))

    def state(self, names: tuple[str, ...]) -> str:
        """Changes when a run of these has a new cell or decode; "" when all are finished."""
        stores = self._stores(names)
        counts = [_finished(store) for store in stores]
        if all(finished == planned for finished, planned in counts):
            return ""
        outputs = [
            sum(1 for kind in ("records", "requests") for _ in store.path.glob(f"{kind}/*/*.json")) for store in stores
        ]
        return ",".join(f"{finished}+{stored}" for (finished, _), stored in zip(counts, outputs, strict=True))

    def _stores(self, names: tuple[str, ...]) -> list[Store]:
        runs = self.runs()
        if unknown := [name for name in names if name not in runs]:
            raise StoreError(f"there is no run {unknown[0]!r} in {self.folder}")
        return [Store.open(runs[name]) for name in names]

    def _pages(self, place: str, names: tuple[str, ...], picked: tuple[tuple[int, str], ...]) -> str:
        with self._lock:
            stores, state = self._stores(names), self.state(names)
            begun = " ".join(store.manifest.created for store in stores)
            before = self._written.get(place)
            if before != (begun, state):
                follow = "/state?" + urlencode([("run", name) for name in names]) if state and not picked else ""
                known = before is not None and before[0] == begun
                served = page.Served(names, follow, state, picked, known)
                page.write(stores, self.site / place, self.curve, served)
                self._written[place] = begun, state
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


def _entry(name: str, path: Path) -> ListedRun:
    try:
        store = Store.open(path)
    except StrideError as error:
        return ListedRun(name, "", "", 0, 0, str(error))
    facts = RunFacts.of(store)
    return ListedRun(name, facts.name, facts.created, *_finished(store))


def _finished(store: Store) -> tuple[int, int]:
    """How many cells are finished, and how many will be; an engine's cell is finished when it is judged."""
    cells = store.manifest.cells
    runnable = [name for name, cell in cells.items() if cell.status != "skipped" or store.sealed(name)]
    judged = sum(store.meta(name).verdict is not None for name in store.engine_cells())
    return len(store.cells()) + judged, len(runnable) + len(store.manifest.engines)


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
            elif address.path in ("/open", "/compare", "/state"):
                self._answer(address.path, parse_qs(address.query))
                return
            elif address.path.startswith("/runs/") and address.path.endswith("/index.html"):
                self._library.pages_of(tuple(map(unquote, address.path.split("/")[2].split("+"))))
        except StrideError as error:
            self._refuse(str(error))
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

    def _refuse(self, reason: str) -> None:
        """Send a page that says why the asked one is missing."""
        page_of = page.environment().get_template("error.html")
        body = page_of.render(title="no such page", root="/", reason=reason).encode()
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, action: str, query: dict[str, list[str]]) -> None:
        """Send the state of runs as text, or the browser to the pages that were asked for."""
        names, cells = (tuple(dict.fromkeys(query.get(key, []))) for key in ("run", "cell"))
        if action == "/state":
            body = self._library.state(names).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if action == "/open":
            place = self._library.pages_of(names) if names else ""
        else:
            place = self._library.compared(cells) if cells else ""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/{quote(place, safe='/+')}/index.html" if place else "/")
        self.end_headers()


@contextmanager
def serve(folder: Path, port: int, curve: page.Curve | None = None) -> Iterator[ThreadingHTTPServer]:
    """Bind the server of a folder; its pages are removed at the end.

    Args:
        curve: of the e-value of a cell.

    Raises:
        StoreError: the port is taken.
    """
    with tempfile.TemporaryDirectory(prefix="stride-view-") as site:
        library = Library(folder, Path(site), curve)
        text.write(Path(site) / "assets")
        handler = functools.partial(Handler, library=library)
        try:
            server = ThreadingHTTPServer((ADDRESS, port), handler)
        except OSError as error:
            raise StoreError(f"port {port} cannot be served: {error}. Choose another with --port.") from error
        with server:
            yield server
