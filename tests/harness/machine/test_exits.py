"""`sys.exit` of another package in the process of a command: an incomplete run with one message."""

from __future__ import annotations

import errno
import io
import os

import click
import pytest
from rich.console import Console

from stridebench.harness.cli import main
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.machine.exits import exits_are_told


@pytest.mark.parametrize("code", ["", "0", "7", "'words'"])
def test_what_another_package_exits_with_is_an_incomplete_run(code: str) -> None:
    with pytest.raises(RunIncomplete, match=r"sys.exit\(.*\) in odd.py, line 1 ended this command"), exits_are_told():
        exec(compile(f"import sys; sys.exit({code})", "odd.py", "exec"))


def test_a_command_of_our_own_exits_as_it_asks() -> None:
    with pytest.raises(SystemExit) as stopped, exits_are_told():
        exec(compile("raise SystemExit(1)", main.__file__, "exec"))
    assert stopped.value.code == 1


def test_a_reader_that_is_gone_is_no_exit_of_another_package() -> None:
    with pytest.raises(BrokenPipeError), exits_are_told():
        click.Command("list", callback=breaks).main([], standalone_mode=False)


def test_a_table_that_nobody_reads_any_more_is_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(os, "dup2", lambda *numbers: numbers)
    with pytest.raises(BrokenPipeError), exits_are_told():
        Console(file=Closed()).print("a line")


def breaks() -> None:
    raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(("words", "code"), [("list", 0), ("report", 0), ("run --dry-run", 0), ("gate", 3), ("run", 3)])
def test_without_a_reader_a_verdict_is_no_success(
    words: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *numbers: numbers)
    assert main.without_reader(words.split()) == code
    assert ("nobody reads the output" in capfd.readouterr().err) is (code == 3)
