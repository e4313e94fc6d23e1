"""A server of one machine that speaks what is needed of S3: objects are put, read, listed and deleted."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Objects:
    """The objects of the server, by bucket/key, and the parts of uploads that are not complete."""

    port: int
    there: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def url(self, path: str) -> str:
        """The URL of a path, with the server's address."""
        address = quote(f"127.0.0.1:{self.port}", safe="")
        return f"s3://{path}?endpoint_override={address}&scheme=http&region=here"


@contextmanager
def s3_server() -> Iterator[Objects]:
    """A running server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    objects = Objects(server.server_address[1])
    server.objects = objects  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a client of S3; signatures are not checked."""

    protocol_version = "HTTP/1.1"

    @property
    def objects(self) -> Objects:
        return self.server.objects  # type: ignore[attr-defined, no-any-return]

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def do_PUT(self) -> None:
        data = self._body()
        if "partNumber" in self.query:
            self.objects.parts[self.query["uploadId"][0]][int(self.query["partNumber"][0])] = data
        else:
            self.objects.there[self.key] = data
        self._answer(200, b"", {"ETag": f'"{md5(data, usedforsecurity=False).hexdigest()}"'})

    def do_POST(self) -> None:
        self._body()
        if "uploads" in self.query:
            name = str(len(self.objects.parts))
            self.objects.parts[name] = {}
            self._xml(f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        else:
            parts = self.objects.parts.pop(self.query["uploadId"][0])
            self.objects.there[self.key] = b"".join(parts[number] for number in sorted(parts))
            self._xml('<CompleteMultipartUploadResult><ETag>"0"</ETag></CompleteMultipartUploadResult>')

    def do_HEAD(self) -> None:
        self._get(body=False)

    def do_GET(self) -> None:
        if "list-type" in self.query:
            self._list(self.query.get("prefix", [""])[0], self.query.get("delimiter", [""])[0])
        else:
            self._get(body=True)

    def do_DELETE(self) -> None:
        self.objects.there.pop(self.key, None)
        self._answer(204, b"")

    def log_message(self, format: str, *args: Any) -> None:
        """No line a request."""

    def _get(self, body: bool) -> None:
        data = self.objects.there.get(self.key)
        if data is None and "/" not in self.key:
            self._answer(200, b"")  # a bucket
        elif data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"")
        else:
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            end = min(int(last) + 1, len(data)) if last else len(data)
            cut = data[int(first) : end]
            span = {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"} if "Range" in self.headers else {}
            dated = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT", "Accept-Ranges": "bytes", **span}
            self._answer(206 if span else 200, cut, dated, body)

    def _list(self, prefix: str, delimiter: str) -> None:
        keys = [name.partition("/")[2] for name in sorted(self.objects.there) if name.startswith(f"{self.key}/")]
        keys = [key for key in keys if key.startswith(prefix)]
        folders = {prefix + rest.partition("/")[0] + "/" for key in keys if "/" in (rest := key[len(prefix) :])}
        folders = folders if delimiter else set()
        files = [key for key in keys if not any(key.startswith(folder) for folder in folders)]
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{len(self.objects.there[f'{self.key}/{key}'])}</Size></Contents>"
            for key in files
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        count = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
        self._xml(f"<ListBucketResult>{count}{''.join(rows)}</ListBucketResult>")

    def _body(self) -> bytes:
        """The data of a request; a client sends them in chunks of HTTP, in its own chunks, or in both."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = unchunked(self.rfile)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return unchunked(io.BytesIO(data)) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0"?>{text}'.encode(), {"Content-Type": "application/xml"})

    def _answer(self, code: int, data: bytes, headers: dict[str, str] | None = None, body: bool = True) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def unchunked(file: BinaryIO) -> bytes:
    """The data of chunks, each a line with its size in hexadecimal digits, then its bytes; a trailer is dropped."""
    data = b""
    while size := int(file.readline().split(b";")[0], 16):
        data += file.read(size)
        file.readline()
    while file.readline().strip():
        pass
    return data
