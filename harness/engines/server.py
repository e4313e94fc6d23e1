"""One server over HTTP: its answers as JSON, its streams as events with their times, its faults by kind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from stridebench.harness.core.engine import EngineFault
from stridebench.harness.engines.answer import Event
from stridebench.harness.engines.keys import Key
from stridebench.harness.errors import UsageError
from stridebench.harness.platform.extras import optional

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_QUOTE = 200
KEPT_S = 1.0
"""How long an idle connection is kept: less than servers keep theirs (5 s and more), so that none is closed in use."""


class Server:
    """A server at an address.

    Args:
        url: without the path of an endpoint.
        key_env: the environment variable that holds its key; a key is never stored or printed.
        timeout_s: between two bytes of an answer.

    Raises:
        UsageError: the address is no URL, the key is none, or the extra is not installed.
    """

    def __init__(self, url: str, key_env: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a server; write http://127.0.0.1:8000")
        if parts.username or parts.password:
            raise UsageError(f"the address of {parts.hostname} holds a password; put a key into ${key_env}")
        self.url = url.rstrip("/")
        self._httpx = optional("httpx", "an engine behind a URL", "engines")
        self._sse = optional("httpx_sse", "an engine behind a URL", "engines")
        self._key = Key(key_env)
        self._client = self._httpx.Client(
            base_url=self.url,
            headers=self._key.headers,
            timeout=self._httpx.Timeout(timeout_s, connect=min(timeout_s, 10)),
            limits=self._httpx.Limits(max_connections=None, keepalive_expiry=KEPT_S),
            trust_env=parts.hostname not in LOOPBACK,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def json(self, path: str) -> Any:
        """The JSON of an endpoint. EngineFault: there is none."""
        text = self.text(path)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fault("malformed", f"{self.url}{path} answered no JSON: ", repr(text)) from error

    def text(self, path: str) -> str:
        """The text of an endpoint. EngineFault: there is none."""
        with self._faults(path):
            response = self._read(path)
            self._check(response, path)
            return str(response.text)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        """The messages of a stream, until the server says that it is complete.

        The request is sent once, whatever happens: a server that has read it may count its tokens.

        Raises:
            EngineFault: the server failed, or the stream holds something else than JSON objects.
        """
        with self._faults(path), self._sse.connect_sse(self._client, "POST", path, json=dict(body)) as source:
            self._check(source.response, path)
            for event in source.iter_sse():
                arrived = time.perf_counter_ns()
                if event.data == "[DONE]":
                    return
                yield Event(arrived, self._object(path, event.data))

    def _read(self, path: str) -> Any:
        """The answer of an endpoint that is only read; asked once more where the server closed a kept connection."""
        try:
            return self._client.get(path)
        except self._httpx.RemoteProtocolError as closed:
            try:
                return self._client.get(path)
            except self._httpx.ConnectError:
                raise closed from None

    def answers(self) -> bool:
        """Whether anything answers at the address now."""
        try:
            self._client.get("/health", timeout=5)
        except self._httpx.HTTPError:
            return False
        return True

    def _object(self, path: str, text: str) -> dict[str, Any]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fault("malformed", f"{self.url}{path} sent no JSON: ", repr(text)) from error
        if not isinstance(data, dict):
            raise self.fault("malformed", f"{self.url}{path} sent no JSON object: ", repr(text))
        if data.get("error"):
            raise self.fault("server_error", f"{self.url}{path}: ", str(data["error"]))
        return data

    def _check(self, response: Any, path: str) -> None:
        """Refuse an answer that is no success."""
        if response.is_success:
            return
        response.read()
        code, text = response.status_code, str(response.text)
        kind = "not_served" if code == 404 and "model" in text.lower() else "refused"
        kind = "overloaded" if code == 429 else "server_error" if code >= 500 else kind
        raise self.fault(kind, f"{self.url}{path} answered {code}: ", text)

    def fault(self, kind: str, where: str, text: str) -> EngineFault:
        """A fault that quotes a text of the server or the client, without the key."""
        return EngineFault(kind, where + self.hidden(text)[:LONGEST_QUOTE])

    def hidden(self, text: str) -> str:
        """A text of the server without the key."""
        return self._key.hidden(text)

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """Name the fault behind an error of the client."""
        where = f"{self.url}{path}: "
        try:
            yield
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
            raise self.fault("no_server", where, str(error)) from error
        except self._httpx.TimeoutException as error:
            raise self.fault("timeout", where, type(error).__name__) from error
        except self._httpx.TransportError as error:
            kind = "cut_short" if self.answers() else "server_died"
            raise self.fault(kind, where, f"{type(error).__name__}: {error}") from error
        except self._sse.SSEError as error:
            raise self.fault("malformed", where, str(error)) from error
