"""Starts a server that a small YAML file declares, waits until it answers, and stops it with its children."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import IO, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import harness.engines
from harness.core.engine import EngineFault
from harness.errors import UnknownNameError, UsageError
from harness.platform.extras import optional

SHIPPED = Path(harness.engines.__file__).parent / "servers"
PATIENCE_S = 10
"""How long a server may take to end before it is killed."""


class Declared(BaseModel):
    """A server.

    Args:
        engine: its adapter.
        command: the words of its command, with $model, $host and $port.
        port: where it listens.
        health: the path that answers 200 when it is ready.
        wait_s: how long it may take until then.
        methods: further words of the command, by the name of a way to speculate.
        environment: variables that are set for it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: str
    command: tuple[str, ...] = Field(min_length=1)
    port: int = Field(8000, ge=1, le=65535)
    health: str = "/health"
    wait_s: float = Field(600, gt=0)
    methods: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    environment: Mapping[str, str] = Field(default_factory=dict)

    def words(self, model: str, method: str, host: str, port: int) -> list[str]:
        """The command.

        Raises:
            UsageError: there is no such method, or the command needs a model.
        """
        if method and method not in self.methods:
            raise UnknownNameError("method of the server", method, self.methods)
        words = [*self.command, *(self.methods[method] if method else ())]
        if not model and any("$model" in word for word in words):
            raise UsageError(f"the server of {self.engine} needs a model; name one with --model")
        return [Template(word).safe_substitute(model=model, host=host, port=str(port)) for word in words]


def names() -> list[str]:
    """Servers that are declared with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def declared(name: str) -> Declared:
    """A server by name, or by the path of its file.

    Raises:
        UsageError: there is none, or its file is wrong.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("server", name, names())
    try:
        return Declared.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise UsageError(f"{path} declares no server: {error}") from error


@contextmanager
def started(server: Declared, words: list[str], url: str, log: IO[Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers, until the block ends.

    Args:
        log: gets what it prints.

    Raises:
        EngineFault: it ended, or did not answer in time.
    """
    environment = {**os.environ, **server.environment}
    try:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True)
    except OSError as error:
        raise EngineFault("no_server", f"{words[0]} cannot be started: {error}") from error
    try:
        _wait(server, process, url + server.health)
        yield process
    finally:
        stop(process)


def _wait(server: Declared, process: subprocess.Popen[bytes], address: str) -> None:
    httpx = optional("httpx", "stride serve", "engines")
    until = time.monotonic() + server.wait_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise EngineFault("no_server", f"{server.engine} ended with {process.returncode} before it answered")
        try:
            if httpx.get(address, timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise EngineFault("no_server", f"{address} did not answer within {server.wait_s:g} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and its children: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
