"""`stride watch`: acceptance and latency of a running server, over hours."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.paths import LocalPath
from stridebench.harness.discover import declare_all
from stridebench.harness.engines.answer import KEY_ENV
from stridebench.harness.engines.serving.engines import Watched
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_entries import EngineUse
from stridebench.harness.plan.names import TaskUse
from stridebench.harness.record.entries import json_values
from stridebench.harness.registry import ENGINES, TASKS
from stridebench.reports.history.report import Change, changes
from stridebench.reports.history.series import Series, read, series
from stridebench.reports.text_table import number

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOVES = ("acceptance", "length_per_draft", "length_per_pass")
"""Metrics whose change is told; latency is kept in the history and not judged, since load changes it."""


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    """Seconds, as 60s, 5m, 8h or 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if match is None:
            self.fail(f"{value!r} is no duration; write 60s, 5m, 8h or 1d", param, ctx)
        return float(match[1]) * UNITS[match[2]]


@click.command(name="watch")
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
def command(
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

    Probes are greedy and always the same, so acceptance moves only where the server's decoding does. A move is told at
    its third reading (`stride history` draws them all). A server that does not answer is a line with its fault, and
    watching goes on. The exit code is 1 where acceptance has moved since the watch began, 3 where nothing was answered.

    \b
    stride watch http://127.0.0.1:8000 --every 60s --for 8h
    stride watch http://127.0.0.1:8080 --engine llama_cpp --for 10m --every 5s --history llama.jsonl
    """
    declare_all()
    kind: Any = ENGINES.get(engine)
    if not hasattr(kind, "url"):
        raise UsageError(
            f"{engine} runs in this process and has no address to watch; `stride list engines` has servers"
        )
    probes: Any = TASKS.get(task)()
    use = EngineUse(engine, f"{engine} at {url}", {"url": url, "prompt": "text", "key_env": key_env})
    prompts = probes.prompts()[:limit]
    watched = Watched(use, TaskUse(task, probes, limit), prompts, max_new_tokens)
    until, told, readings, failed = time.monotonic() + lasting, _moves(history), 0, 0
    first = list(told)
    while True:
        begun = time.monotonic()
        line = watched.line()
        _append(history, line)
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


def _append(history: Path, line: dict[str, Any]) -> None:
    history.parent.mkdir(parents=True, exist_ok=True)
    with open(history, "a", encoding="utf-8") as file:
        file.write(json.dumps(json_values(line), allow_nan=False) + "\n")


def _moves(history: Path) -> list[str]:
    """Every change of acceptance in a history, in words."""
    if not history.is_file() or not history.stat().st_size:
        return []
    return [
        f"{one.label}: {one.metric} moved from {number(step.before)} to {number(step.after)} "
        f"between {step.last.created} and {step.first.created}"
        for one in series(read(history))
        if one.metric in MOVES
        for step in changes(one)
        if _begun(one, step)
    ]


def _begun(one: Series, step: Change) -> bool:
    """Whether the first reading after a change is of the new level: two new ones make a part of three with an old."""
    value = one.values[one.nights.index(step.first)]
    return abs(value - step.after) < abs(value - step.before)


def _text(line: dict[str, Any]) -> str:
    if line["status"] != "done":
        return f"{line['created']}  {line['error']}"
    names: Sequence[str] = (*MOVES, "ttft_ms", "tpot_ms", "tokens_per_second")
    figures = [f"{name} {number(line[name])}" for name in names if line.get(name) is not None]
    note = ["the server was started again since the reading before"] if line.get("restarted") else []
    return "  ".join([str(line["created"]), *figures, *note])
