"""Starts a server that a small YAML file declares, waits until it answers, and stops it with its children."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import IO, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import stridebench.harness.engines
import stridebench.harness.engines.serving.keeper as keeper
from stridebench.harness.core.engine import EngineFault
from stridebench.harness.engines.answer import LOOPBACK, ServerKey
from stridebench.harness.errors import UnknownNameError, UsageError, printable_line
from stridebench.harness.machine.extras import install_command, optional
from stridebench.harness.plan.entries import EngineUse
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.registry import ENGINES

SHIPPED = Path(stridebench.harness.engines.__file__).parent / "servers"
SYNTHETIC = "synthetic"
"""The way that accepts drafts by chance, at a chosen mean length: the cost of speculation without a drafter."""
PATIENCE_S = 10
"""How long a server may take to end before it is killed."""
LONGEST_ATTEMPT_S = 3
"""How long a server may take to accept a connection before it counts as not there."""
LAST_LINES, LONGEST_LINE = 3, 200
"""How much of a server's output an error quotes: lines at its end, and characters of each."""


class Declared(BaseModel):
    """A server.

    Args:
        engine: its adapter.
        command: the words of its command, with $model, $host and $port.
        port: that it listens on.
        health: the path that answers 200 when it is ready.
        wait_s: how long it may take until then.
        methods: further words of the command, by the name of a way to speculate.
        environment: variables that are set for it unless the caller's environment has them.
        method_environment: variables that are set in any case, by the name of a way to speculate.
        weights: the form of a backbone that it loads if no model is named: folder or gguf.
        remedies: advice if it ends before it answers, by the name of the signal that ended it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: str
    command: tuple[str, ...] = Field(min_length=1)
    port: int = Field(8000, ge=1, le=65535)
    health: str = "/health"
    wait_s: float = Field(600, gt=0)
    methods: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    environment: Mapping[str, str] = Field(default_factory=dict)
    method_environment: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    weights: Literal["folder", "gguf"] = "folder"
    remedies: Mapping[str, str] = Field(default_factory=dict)

    @property
    def ways(self) -> list[str]:
        """The names of its ways to speculate."""
        return sorted({*self.methods, *self.method_environment})

    def words(self, model: str, method: str, host: str, port: int) -> list[str]:
        """The command.

        Args:
            method: a name of ``ways``; of the synthetic one with ``=LENGTH``, the mean acceptance length.

        Raises:
            UsageError: the method does not exist, its length is not valid, or the command needs a model.
        """
        name, length = self._way(method)
        words = [*self.command, *self.methods.get(name, ())]
        if not model and any("$model" in word for word in words):
            raise UsageError(f"the server of {self.engine} needs a model; name one with --model")
        return [Template(word).safe_substitute(length, model=model, host=host, port=str(port)) for word in words]

    def variables(self, method: str, callers: Mapping[str, str]) -> dict[str, str]:
        """Its environment; arguments and errors as of ``words``.

        Args:
            callers: the environment of the process that starts it.
        """
        name, length = self._way(method)
        own = {
            key: Template(value).safe_substitute(length) for key, value in self.method_environment.get(name, {}).items()
        }
        return {**self.environment, **callers, **own}

    def _way(self, method: str) -> tuple[str, dict[str, str]]:
        """The name of a way to speculate, and what stands for $length and $accepted in its words."""
        name, _, length = method.partition("=")
        if name and name not in self.ways:
            raise UnknownNameError("method of the server", name, self.ways)
        if (name == SYNTHETIC) != bool(length):
            raise UsageError(
                f"method {method!r}: write {SYNTHETIC}=LENGTH, a mean of 1 token a pass or more, or a name"
            )
        if not length:
            return name, {}
        try:
            value = float(length)
        except ValueError:
            value = math.nan
        if not 1 <= value < math.inf:
            raise UsageError(f"method {method!r}: the mean acceptance length is {length!r}, not a number from 1 on")
        return name, {"length": f"{value:g}", "accepted": f"{value - 1:g}"}


def names() -> list[str]:
    """Servers that are declared with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def declared(name: str) -> Declared:
    """A server by name, or by the path of its file.

    Raises:
        UsageError: the server is not known, or its file is wrong.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("server", name, names())
    try:
        return Declared.model_validate(load_yaml(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise UsageError(f"{path} declares no server: {error}") from error


def taken(host: str, port: int, timeout_s: float = 1) -> bool:
    """Return whether something answers there already, which would be taken for the server that is started."""
    with suppress(OSError), socket.create_connection((host, port), timeout_s):
        return True
    return False


def obstacle(use: EngineUse) -> str | None:
    """Return why an engine cannot start on this machine now, or None if nothing is known to be missing.

    Its modules are looked up, not imported. A program is looked up on the path, and a server is tried at its address.

    Raises:
        UsageError: the server or its way to speculate is not known.
    """
    missing = [name for name in use.kind.needs if find_spec(name) is None]
    if missing:
        how = "" if ENGINES.from_plugin(use.name) else f"; install them with {install_command('engines')}"
        return f"it needs the module{'s' * (len(missing) > 1)} {' and '.join(missing)}{how}"
    if use.starts:
        server = declared(use.serve)
        return _no_program(server.command, server.variables(use.method, os.environ).get("PATH"))
    url = use.options.get("url", getattr(use.kind, "url", None))
    return None if url is None else _silent(str(url))


def _no_program(words: Sequence[str], path: str | None) -> str | None:
    program = shutil.which(words[0], path=path)
    if program is None:
        return f"there is no program {words[0]} on the path"
    if words[1:2] != ("-m",):
        return None
    module = words[2].partition(".")[0]
    question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    found = subprocess.run([program, "-c", question], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    return None if found else f"{program} has no module {module}"


def _silent(url: str) -> str | None:
    """Return that nothing answers at an address; a server behind a proxy cannot be tried from here."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if host is None:
        return f"{url!r} is not the address of a server; write http://127.0.0.1:8000"
    if (getproxies() and host not in LOOPBACK) or taken(host, port, LONGEST_ATTEMPT_S):
        return None
    return f"nothing answers at {url}; start the server, or name one that runs with --url"


def free_port(host: str, wanted: int) -> int:
    """Return the wanted port, or any other if that is taken."""
    if not taken(host, wanted):
        return wanted
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    server: Declared, words: list[str], url: str, log: IO[Any] | int, method: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers, until the block ends.

    Args:
        words: of its command, with ``method``.
        log: gets its output: a file, or the number of an open one.

    Raises:
        EngineFault: something else answers at its address, it ended, or did not answer in time.
    """
    parts = urlsplit(url)
    if taken(str(parts.hostname), parts.port or 80):
        raise EngineFault("no_server", f"something else answers at {url} already; stop it, or choose another port")
    process = kept(words, server.variables(method, os.environ), log)
    try:
        _wait(server, process, url + server.health)
        yield process
    finally:
        stop(process)


def kept(words: list[str], environment: Mapping[str, str], log: IO[Any] | int) -> subprocess.Popen[bytes]:
    """Start a command that ends, with all that it starts, at ``stop`` and when this process ends, however it does.

    Returns:
        The keeper (`keeper`): it ends as the command ended.

    Raises:
        EngineFault: the program does not exist.
    """
    if shutil.which(words[0], path=environment.get("PATH")) is None:
        raise EngineFault(
            "no_server", f"{words[0]} cannot be started: there is no such program, or it may not be executed"
        )
    return subprocess.Popen(
        [sys.executable, "-I", str(keeper.__file__), str(PATIENCE_S), *words],
        stdin=subprocess.PIPE,  # it closes when this process ends
        stdout=log,
        stderr=log,
        env=dict(environment),
        start_new_session=True,  # ^C and a kill of this process group do not reach it
    )


def _wait(server: Declared, process: subprocess.Popen[bytes], address: str) -> None:
    httpx = optional("httpx", "stride engine serve", "engines")
    until = time.monotonic() + server.wait_s
    while time.monotonic() < until:
        if process.poll() is not None:
            code = process.returncode
            remedy = f"; {server.remedies[_name(code)]}" if _name(code) in server.remedies else ""
            raise EngineFault("no_server", f"{ending(server, code)} before it answered{remedy}")
        try:
            if httpx.get(address, timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise EngineFault("no_server", f"{address} did not answer within {server.wait_s:g} s")


def ending(server: Declared, code: int) -> str:
    """How a server ended, as `subprocess.Popen.returncode` tells it."""
    return f"{server.engine} ended with {_name(code)}"


def _name(code: int) -> str:
    return {-number: number.name for number in signal.Signals}.get(code, f"exit code {code}")


def last_lines(log: Path, key: ServerKey) -> str:
    """Return the end of a server's output as one line without the key; empty if it printed nothing."""
    text = key.hidden(log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(printable_line(line[:LONGEST_LINE]) for line in lines[-LAST_LINES:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End what ``kept`` started: its keeper asks everything below it to end, and kills what does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(PATIENCE_S + 2 * keeper.KILL_S)
    except subprocess.TimeoutExpired:  # the keeper itself was stopped
        process.kill()
        process.wait()
