"""A server that gives recorded answers: streams of the documented form of each engine, and its counters."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "smol"


@dataclass
class Answers:
    """What the server answers, and what it was asked.

    Args:
        events: messages of each stream, without the last ``[DONE]``.
        done: whether ``[DONE]`` is sent.
        status: of the answer to a request; other than 200 with ``body``.
        cut: close the connection behind the last message, before the stream is complete.
        pause_s: before each message.
        port: 0: a free one.
        metrics: texts of the counters, one a reading; the last one stays.
        reply: returns the messages of the stream for the body of a request, instead of ``events``.
        whole: answer with one JSON document, as a server without streams.
        owner: what the server calls itself in the list of its models.
        tokenised: ids of every text that it is asked to tokenise.
        headers: of the list of its models, and of a refusal.
        listing: its list of models; None: one of ``models``.
    """

    events: Sequence[Mapping[str, Any] | str] = ()
    done: bool = True
    status: int = 200
    body: str = ""
    cut: bool = False
    pause_s: float = 0.0
    port: int = 0
    metrics: list[str] = field(default_factory=list)
    models: tuple[str, ...] = (MODEL,)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    reply: Callable[[dict[str, Any]], Sequence[Mapping[str, Any]]] | None = None
    whole: bool = False
    owner: str = ""
    tokenised: Sequence[int] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    listing: Any = None

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """A request for tokens."""
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.Response(status=self.status, text=self.body, headers=self.headers)
        events = self.events if self.reply is None else self.reply(self.asked[-1])
        if self.whole:
            return web.json_response(events[-1])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await asyncio.sleep(self.pause_s)
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())
        if self.cut:
            assert request.transport is not None
            request.transport.close()
            return response
        if self.done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def listed(self, request: web.Request) -> web.Response:
        """The models."""
        listing = {"data": [{"id": name, "owned_by": self.owner} for name in self.models]}
        return web.json_response(listing if self.listing is None else self.listing, headers=self.headers)

    async def tokens(self, request: web.Request) -> web.Response:
        """The ids of a text, in the form of llama.cpp."""
        return web.json_response({"tokens": list(self.tokenised)})

    async def counted(self, request: web.Request) -> web.Response:
        """The counters of now."""
        if not self.metrics:
            return web.Response(status=501, text="start it with --metrics")
        return web.Response(text=self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0])

    async def health(self, request: web.Request) -> web.Response:
        """It is there."""
        return web.Response(text="ok")


@contextmanager
def answer_server(answers: Answers) -> Iterator[Answers]:
    """The server, on a free port of the loopback address."""
    app = web.Application()
    for path in ("/v1/completions", "/completion", "/generate"):
        app.router.add_post(path, answers.stream)
    app.router.add_post("/tokenize", answers.tokens)
    app.router.add_get("/v1/models", answers.listed)
    app.router.add_get("/metrics", answers.counted)
    app.router.add_get("/prometheus/metrics", answers.counted)
    app.router.add_get("/health", answers.health)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(app)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", answers.port)
        await site.start()
        answers.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield answers
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
