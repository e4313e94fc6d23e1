"""`stride serve`: starts a server of an engine, for a run with the engine's url."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from stridebench.harness.cli.main import say
from stridebench.harness.engines.serving import launch

_LOOPBACK = "127.0.0.1"
_STANDARD_ERROR = 2


@click.command(name="serve")
@click.argument("name", required=False)
@click.option("--model", default="", help="What it serves: a folder, a file or a name, as the engine takes it.")
@click.option(
    "--method",
    default="",
    help="How it speculates: a name of its file, or synthetic=LENGTH, which accepts by chance. Default: not at all.",
)
@click.option("--host", default=_LOOPBACK, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: that of its file.")
@click.option(
    "--wait", type=click.FloatRange(0, min_open=True), help="Seconds until it must answer. Default: its file's."
)
def command(name: str | None, model: str, method: str, host: str, port: int | None, wait: float | None) -> None:
    """Start a server, wait until it answers, and keep it until ^C or SIGTERM; its children end with it.

    NAME is a server that came with the package, or the path of a YAML file with engine, command, port, health and
    methods. Without NAME: the servers and their methods. The exit code is 0 after ^C and SIGTERM, once all processes
    of the server have ended, and 1 where the server ends by itself with another code than 0.

    \b
    stride serve
    stride serve llama_cpp --model model.gguf --method ngram
    stride serve vllm --model FOLDER --method synthetic=2.5
    stride serve mine.yaml --port 9000
    """
    if name is None:
        for known in launch.names():
            say(f"{known}: {', '.join(launch.declared(known).ways) or 'no methods'}")
        return
    server = launch.declared(name)
    server = server if wait is None else server.model_copy(update={"wait_s": wait})
    at = port or server.port
    words = server.words(model, method, host, at)
    url = f"http://{_LOOPBACK if host == '0.0.0.0' else host}:{at}"
    with _stopped_at_a_signal(), launch.started(server, words, url, _STANDARD_ERROR, method) as process:
        say(f"{server.engine} answers at {url}; ^C ends it")
        code = process.wait()
        say(f"stride: {launch.ending(server, code)}", err=True)
        raise SystemExit(0 if code == 0 else 1)
    say(f"{server.engine} and its processes have ended")


@contextmanager
def _stopped_at_a_signal() -> Iterator[None]:
    """^C and SIGTERM, also with a supervisor's second one while it ends, leave the block without an error."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt
