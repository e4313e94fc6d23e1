"""`stride engine`: runs suites on the servers of other projects, starts them, and watches them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from stridebench.harness.cli import run as run_verb
from stridebench.harness.cli.main import LazyGroup, LocalPath, add_to_step_summary, emit, say
from stridebench.harness.cli.servers import addresses_of, asked_servers, server_options
from stridebench.harness.discover import declare_all
from stridebench.harness.engines.answer import KEY_ENV
from stridebench.harness.engines.serving import launch
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.plan.suite import seconds_of
from stridebench.harness.record.outputs import json_values
from stridebench.harness.registry import ENGINES, TASKS
from stridebench.reports.history.series import Change, Series, changes, read, series
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number, print_table, word

SUITE = "servers"
"""The suite that `stride engine run` decodes by default."""
_LOOPBACK = "127.0.0.1"
_STANDARD_ERROR = 2
MOVES = ("acceptance", "length_per_draft", "length_per_pass")
"""Metrics whose change is reported; latency is only kept in the history, since load changes it."""


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    """A time in seconds, written as 60s, 5m, 8h or 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(seconds_of(value))
        except ValueError:
            self.fail(f"{value!r} is not a duration; write 60s, 5m, 8h or 1d", param, ctx)


@click.group(name="engine", cls=LazyGroup)
def command() -> None:
    """Measure and audit engines: servers of other projects, and engines that run in this process.

    \b
    stride engine serve vllm --model FOLDER
    stride engine run --url vLLM=http://127.0.0.1:8000
    stride engine check http://127.0.0.1:8000 --plain http://127.0.0.1:8001 --prompts mine.jsonl
    stride engine probe http://127.0.0.1:8000
    stride engine watch http://127.0.0.1:8000
    """


def run_engines(name: str | None, **options: Any) -> None:
    """Run the suite `servers`, or another one, as `stride run` does; all its options can be given.

    \b
    stride engine run --dry-run
    stride engine run --url vLLM=http://127.0.0.1:8000    a running server, for one engine of the suite
    stride engine run mine.yaml --out runs/mine
    """
    resumed = options["resume"] and options["out"] is not None
    click.get_current_context().invoke(run_verb.command, name=name if name or resumed else SUITE, **options)


command.add_command(
    click.Command("run", callback=run_engines, params=run_verb.command.params, help=run_engines.__doc__)
)


@command.command(name="serve")
@click.argument("name", required=False)
@click.option("--model", default="", help="The model to serve: a folder, a file or a name, as the engine takes it.")
@click.option(
    "--method",
    default="",
    help="How it speculates: a name of its file, or synthetic=LENGTH, which accepts by chance. Default: none.",
)
@click.option("--host", default=_LOOPBACK, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: that of its file.")
@click.option(
    "--wait", type=click.FloatRange(0, min_open=True), help="Seconds until it must answer. Default: its file's."
)
def serve(name: str | None, model: str, method: str, host: str, port: int | None, wait: float | None) -> None:
    """Start a server, wait until it answers, and keep it until ^C or SIGTERM; its children end with it.

    NAME is a server that came with the package, or the path of a YAML file with engine, command, port, health and
    methods. Without NAME: the servers and their methods. The exit code is 0 after ^C and SIGTERM, once all processes
    of the server have ended, and 1 if the server ends by itself with another code than 0.

    \b
    stride engine serve
    stride engine serve llama_cpp --model model.gguf --method ngram
    stride engine serve vllm --model FOLDER --method synthetic=2.5
    stride engine serve mine.yaml --port 9000
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
    """Leave the block without an error at ^C or SIGTERM, also if a supervisor sends a second signal meanwhile."""
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


CHECKED = (
    Column("server", "server", rank=0, formatter=word("server")),
    Column("temperature", "T", 0, rank=0),
    Column("prompts", "prompts", 0, rank=5),
    Column("tokens_per_second", "tokens/s", 1, rank=1),
    Column("times", "x plain", rank=0),
    Column("ttft_ms", "TTFT ms", 0, rank=3),
    Column("tpot_ms", "ms a token", 1, rank=3),
    Column("acceptance", "acceptance", rank=2),
    Column("length_per_draft", "length a draft", rank=4),
    Column("length_per_pass", "length a pass", rank=4),
    Column("verdict", "verdict", rank=1, formatter=word("verdict")),
)


@command.command(name="check")
@click.argument("url")
@server_options
@click.option("--engine", help="Its adapter, of `stride list engines`. Default: as the server calls itself, or openai.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {headline, outcome, reasons, cells, notes}.")
def check_server(url: str, engine: str | None, as_json: bool, **options: Any) -> None:
    """Does speculation pay on a server, and is it safe?

    Each prompt is decoded at T = 0 and at T = 1, by turns on both servers. At T = 0 the tokens and their probabilities
    are compared with the plain decode's. At T = 1 the tokens are bet against by the probabilities that the server sends
    with them, so no weights are needed. In a workflow of GitHub the result goes to the step summary too.

    Exit codes: 0 safe, 1 unsafe, 4 not shown (no --plain, too few prompts, other arithmetic), 2 error.

    \b
    stride engine check http://127.0.0.1:8000 --plain http://127.0.0.1:8001 --prompts mine.jsonl
    stride engine check http://127.0.0.1:8000 --prompts mine.jsonl --limit 24 --json
    """
    declare_all()
    asked = asked_servers(url, engine, "text", options)
    from stridebench.harness.engines import check_verdict, checking  # imports torch, so after the prompts

    result = checking.check(asked.uses, asked.task, asked.prompts, asked.tokens, asked.seconds)
    shown = [one for one in CHECKED if any(getattr(cell, one.key) not in (None, "") for cell in result.cells)]
    lines = [[column.text(asdict(cell)) for column in shown] for cell in result.cells]
    reasons = "\n".join(f"- {reason}" for reason in result.reasons)
    titles = [column.title for column in shown]
    notes = "\n".join(f"- {note}" for note in result.notes)
    add_to_step_summary(
        "\n\n".join([f"## {result.headline}", reasons, "\n".join(markdown_lines(titles, lines)), notes])
    )
    if as_json:
        emit({"headline": result.headline, **asdict(result)})
    else:
        say(f"{result.headline}\n{reasons}\n")
        print_table(TextTable("one request at a time", tuple(shown), lines, list(result.notes)), Console())
    raise SystemExit(check_verdict.OUTCOMES[result.outcome])


@command.command(name="probe")
@click.argument("url")
@click.option("--plain", metavar="URL", help="The same model without drafts. Default: one token a request.")
@click.option("--engine", help="Its adapter, of `stride list engines`. Default: as the server calls itself, or openai.")
@click.option("--key-env", default=KEY_ENV, show_default=True, help="The environment variable that holds its key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {url, outcome, rows}.")
def probe_server(url: str, plain: str | None, engine: str | None, key_env: str, as_json: bool) -> None:
    """Does a refused draft, a shared prefix or a late end leave something behind?

    Short requests that servers with drafts have failed: an empty draft after an accepted one, edges of cache blocks,
    prompts that share a prefix, several at once, max_tokens 1 to 3, a stop string in a draft, JSON, seeds. Greedy
    tokens are compared with the plain decode: of --plain, or of the same server asked for one token at a time.

    Exit codes: 0 safe, 1 unsafe, 4 not shown, 2 error.

    \b
    stride engine probe http://127.0.0.1:8000
    stride engine probe http://127.0.0.1:8000 --plain http://127.0.0.1:8001 --json
    """
    from stridebench.harness.engines import check_verdict, checking, probes  # imports torch

    declare_all()
    places = addresses_of(url, plain)
    name = engine or checking.adapter_of(url, key_env)
    if not hasattr(ENGINES.get(name), "url"):
        raise UsageError(f"{name} runs in this process, so there is no server to probe; `stride list engines` has some")
    uses = {role: EngineUse(name, f"{name} at {at}", {"url": at, "key_env": key_env}) for role, at in places.items()}
    result = check_verdict.ProbedServer(url, tuple(probes.probe(uses["speculative"], uses.get("plain"))))
    if as_json:
        emit({"outcome": result.outcome, **asdict(result)})
    else:
        say(f"{result.outcome}: {url}")
        for row in result.rows:
            say(f"- {row.probe}: {row.verdict}: {row.evidence} ({row.seconds:.1f} s)")
    raise SystemExit(check_verdict.OUTCOMES[result.outcome])


@command.command(name="watch")
@click.argument("url")
@click.option("--engine", default="vllm", show_default=True, help="Its adapter, of `stride list engines`.")
@click.option("--every", type=Duration(), default="60s", show_default=True, help="From one reading to the next.")
@click.option("--for", "lasting", type=Duration(), default="8h", show_default=True, help="How long to watch.")
@click.option("--task", default="humaneval", show_default=True, help="Whose first prompts are the probes.")
@click.option("--limit", type=click.IntRange(1), default=4, show_default=True, help="Probes of a reading.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True, help="Of each probe.")
@click.option("--history", type=LocalPath(), default=Path("watch.jsonl"), show_default=True, help="Lines are added.")
@click.option("--key-env", default=KEY_ENV, show_default=True, help="The environment variable that holds its key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document at the end: {readings, failed, moved}.")
def watch(
    url: str,
    engine: str,
    every: float,
    lasting: float,
    task: str,
    limit: int,
    max_new_tokens: int,
    history: Path,
    key_env: str,
    as_json: bool,
) -> None:
    """Probe a server again and again, add a line to a history each time, and say when its acceptance has moved.

    Probes are greedy and always the same, so acceptance moves only if the server's decoding changes. A move is reported
    at its third reading (`stride gate history` draws them all). If a server does not answer, its error is added as a
    line, and watching goes on. Exit codes: 1 if acceptance has moved since the watch began, 3 if no probe was answered.

    \b
    stride engine watch http://127.0.0.1:8000 --every 60s --for 8h
    stride engine watch http://127.0.0.1:8080 --engine llama_cpp --for 10m --every 5s --history llama.jsonl
    """
    declare_all()
    kind: Any = ENGINES.get(engine)
    if not hasattr(kind, "url"):
        raise UsageError(
            f"{engine} runs in this process, so there is nothing to watch; `stride list engines` has servers"
        )
    probes: Any = TASKS.get(task)()
    use = EngineUse(engine, f"{engine} at {url}", {"url": url, "prompt": "text", "key_env": key_env})
    prompts = probes.prompts()[:limit]
    from stridebench.harness.engines.serving.engines import Watched  # imports torch

    watched = Watched(use, TaskUse(task, probes, limit), prompts, max_new_tokens)
    until, told, readings, failed = time.monotonic() + lasting, _moves(history), 0, 0
    first = list(told)
    while True:
        begun = time.monotonic()
        line = watched.line()
        history.parent.mkdir(parents=True, exist_ok=True)
        with open(history, "a", encoding="utf-8") as file:
            file.write(json.dumps(json_values(line), allow_nan=False) + "\n")
        readings, failed = readings + 1, failed + (line["status"] != "done")
        if not as_json:
            say(_text(line))
        for move in _moves(history):
            if move not in told:
                told.append(move)
                say(move, err=as_json)
        if time.monotonic() + every >= until:
            break
        time.sleep(max(0.0, begun + every - time.monotonic()))
    moved = told[len(first) :]
    if as_json:
        emit({"readings": readings, "failed": failed, "moved": moved})
    raise SystemExit(3 if failed == readings else 1 if moved else 0)


def _moves(history: Path) -> list[str]:
    """Return every change of acceptance in a history, in words."""
    if not history.is_file() or not history.stat().st_size:
        return []
    return [
        f"{one.label} ({one.setting}): {one.metric} moved from {number(step.before)} to {number(step.after)} "
        f"between {step.last.created} and {step.first.created}"
        for one in series(read(history))
        if one.metric in MOVES
        for step in changes(one)
        if _begun(one, step)
    ]


def _begun(one: Series, step: Change) -> bool:
    """Return whether the first reading after a change has the new level.

    A change is found in a part of three readings, of which the first may still have the old level.
    """
    value = one.values[one.nights.index(step.first)]
    return abs(value - step.after) < abs(value - step.before)


def _text(line: Mapping[str, object]) -> str:
    if line["status"] != "done":
        return f"{line['created']}  {line['error']}"
    names: Sequence[str] = (*MOVES, "ttft_ms", "tpot_ms", "tokens_per_second")
    figures = [f"{name} {number(line[name])}" for name in names if line.get(name) is not None]
    note = ["the server was started again since the reading before"] if line.get("restarted") else []
    return "  ".join([str(line["created"]), *figures, *note])
