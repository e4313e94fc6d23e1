"""Serves the pages of a folder of runs: a list of runs, and pages that follow a run. By default to this machine."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
import socket
import sys
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
from stridebench.harness.record.run_folders import run_folders, time_words
from stridebench.harness.record.store import Store
from stridebench.reports.html import page, text

ADDRESS = "127.0.0.1"
HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[0-9a-zA-Z.-]+)(:[0-9]{1,5})?")
"""A name and a port, as a browser writes them."""
LONGEST = 240
"""Bytes of the name of a folder, which names the runs of a page."""


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

    def pages_of(self, names: tuple[str, ...]) -> str:
        """Write the pages of runs if they are new or have new cells; returns their folder below the site.

        Raises:
            StoreError: the run does not exist, or cannot be read.
        """
        folder = "+".join(map(_in_address, names))
        if len(folder) > LONGEST:
            raise StoreError(f"the names of {len(names)} runs are too long for the address of a page; pick fewer")
        return self._pages(f"runs/{folder}", names, ())

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

    def list_of_runs(self) -> bytes:
        """Return the page with the list of runs."""
        template = text.environment().get_template("runs.html")
        quoted = functools.partial(quote, safe="")
        runs = run_folders(self.folder)
        return template.render(title=str(self.folder), root="", runs=runs, quote=quoted, took=time_words).encode()

    def read(self, path: Path) -> bytes | None:
        """Return a written file, which no other thread writes meanwhile; None if there is no such file."""
        with self._lock:
            return path.read_bytes() if path.is_file() else None


def _in_address(name: str) -> str:
    """Return the name of a run with "~" for "%" of an address, so that it is one name in addresses and on the disk."""
    return quote(name, safe="").replace("~", "%7E").replace("%", "~")


def _finished(store: Store) -> tuple[int, int]:
    """How many cells are finished, and how many will be; an engine's cell is finished when it is judged."""
    cells = store.manifest.cells
    runnable = [name for name, cell in cells.items() if cell.status != "skipped" or store.sealed(name)]
    judged = sum(store.meta(name).verdict is not None for name in store.engine_cells())
    return len(store.cells()) + judged, len(runnable) + len(store.manifest.engines)


class Handler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD with the list, with pages that it writes first, and with their files."""

    server_version = "stridebench"

    def __init__(self, *args: object, library: Library, host: str, **kwargs: object) -> None:
        self._library, self._host = library, host
        super().__init__(*args, directory=str(library.site), **kwargs)  # type: ignore[arg-type]  # as the server passes

    def parse_request(self) -> bool:
        """Read the head of a request of any method; one of a foreign page, or without a proper path, is refused."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not may_ask(hosts[0].strip(), self._host):
            self.send_error(HTTPStatus.FORBIDDEN, "this server answers to its own address alone")
            return False
        if not self.path.startswith("/") or self.path.startswith("//") or "\0" in unquote(self.path):
            self.send_error(HTTPStatus.NOT_FOUND)
            return False
        return True

    def do_GET(self) -> None:
        """Answer one request."""
        address = urlsplit(self.path)
        path = address.path + ("index.html" if address.path.endswith("/") else "")
        try:
            if path in ("/open", "/compare", "/state"):
                self._answer(path, parse_qs(address.query))
                return
            if path == "/index.html":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", self._library.list_of_runs())
                return
            if path.startswith("/runs/") and path.endswith("/index.html"):
                names = unquote(path).split("/")[2].split("+")
                self._library.pages_of(tuple(unquote(name.replace("~", "%")) for name in names))
        except StrideError as error:
            body = text.environment().get_template("error.html").render(title="no such page", root="/", reason=error)
            self._send(HTTPStatus.NOT_FOUND, "text/html; charset=utf-8", body.encode())
            return
        file = self.translate_path(path)
        content = self._library.read(Path(file))
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(HTTPStatus.OK, self.guess_type(file), content)

    def do_HEAD(self) -> None:
        """Answer as a GET, without the body."""
        self.do_GET()

    def end_headers(self) -> None:
        """Let no browser keep a page of a run that goes on."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Send an answer, without its body if only the head was asked for."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self, action: str, query: dict[str, list[str]]) -> None:
        """Send the state of runs as text, or the browser to the pages that were asked for."""
        names, cells = (tuple(dict.fromkeys(query.get(key, []))) for key in ("run", "cell"))
        if action == "/state":
            self._send(HTTPStatus.OK, "text/plain", self._library.state(names).encode())
            return
        if action == "/open":
            place = self._library.pages_of(names) if names else ""
        else:
            place = self._library.compared(cells) if cells else ""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/{place}/index.html" if place else "/")
        self.send_header("Content-Length", "0")
        self.end_headers()


class PageServer(ThreadingHTTPServer):
    """A thread a request, for as many browsers as ask at once."""

    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Print an error as usual, but nothing if the client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as the server passes


def may_ask(name: str, host: str) -> bool:
    """Return whether a browser may use a name for this server; by another name, a foreign page has sent the request.

    A foreign page can let its own name point to this machine, but it cannot do so for an address of digits.

    Args:
        name: of a request's header, with the port.
        host: that the server listens on.
    """
    match = HOST.fullmatch(name)
    if match is None:
        return False
    if match[1] in (ADDRESS, "localhost"):
        return True
    if host == ADDRESS:
        return False
    try:
        ipaddress.ip_address(match[1].strip("[]"))
    except ValueError:
        return match[1].lower() in (host.lower(), socket.gethostname().lower())
    return True


@contextmanager
def serve(folder: Path, port: int, curve: page.Curve | None = None, host: str = ADDRESS) -> Iterator[PageServer]:
    """Bind the server of a folder; its pages are removed at the end.

    Args:
        curve: of the e-value of a cell.
        host: the address to listen on.

    Raises:
        StoreError: the port is taken, or the address is not one of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="stride-view-") as site:
        library = Library(folder, Path(site), curve)
        text.write(Path(site) / "assets")
        handler = functools.partial(Handler, library=library, host=host)
        try:
            server = PageServer((host, port), handler)
        except OSError as error:
            where = f"port {port}" + ("" if host == ADDRESS else f" of {host}")
            raise StoreError(f"{where} cannot be served: {error}. Choose another with --port.") from error
        with server:
            yield server
