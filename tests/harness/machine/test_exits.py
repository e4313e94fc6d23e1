"""`sys.exit` of another package in the process of a command: an incomplete run with one message."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from rich.console import Console

from stridebench.harness.cli import main
from stridebench.harness.errors import RunIncomplete
from stridebench.harness.machine import extras
from stridebench.harness.machine.extras import typed
from stridebench.harness.machine.surroundings import be_number, exits_are_told, on_one_core


@pytest.mark.parametrize("code", ["", "7", "'words'"])
def test_what_another_package_exits_with_is_an_incomplete_run(code: str) -> None:
    with pytest.raises(RunIncomplete, match=r"sys.exit\(.*\) in odd.py, line 1 ended this command"), exits_are_told():
        exec(compile(f"import sys; sys.exit({code})", "odd.py", "exec"))


def test_a_command_of_our_own_exits_as_it_asks() -> None:
    with pytest.raises(SystemExit) as stopped, exits_are_told():
        exec(compile("raise SystemExit(1)", main.__file__, "exec"))
    assert stopped.value.code == 1


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    "show",
    [
        click.Command("list", callback=lambda: Closed().write("a line")).main,
        lambda *_, **__: Console(file=Closed()).print("a line"),
    ],
)
def test_a_reader_that_is_gone_is_no_exit_of_another_package(
    show: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *numbers: numbers)
    with pytest.raises(BrokenPipeError), exits_are_told():
        show([], standalone_mode=False)


@pytest.mark.parametrize(("words", "code"), [("list", 0), ("report", 0), ("run --dry-run", 0), ("gate", 3), ("run", 3)])
def test_without_a_reader_a_verdict_is_no_success(
    words: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *numbers: numbers)
    assert main.without_reader(words.split()) == code
    assert ("nobody reads the output" in capfd.readouterr().err) is (code == 3)


# The command that installs an extra works where the user is.


def test_the_command_of_an_extra_names_the_checkout_by_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(extras.CHECKOUT)
    assert extras.install_command("ray") == "pip install '.[ray]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("ray") == f"pip install '{extras.CHECKOUT}[ray]'"


def test_the_command_of_a_wheels_extra_names_the_package_or_the_checkout_that_it_was_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `pip install .` leaves it: the index has no such package."""
    source, installed = tmp_path / "a checkout", tmp_path / "site-packages"
    monkeypatch.setattr(extras, "CHECKOUT", installed)
    assert extras.install_command("ray") == "pip install 'stridebench[ray]'"
    record = installed / "stridebench-0.1.0.dist-info" / "direct_url.json"
    record.parent.mkdir(parents=True)
    record.write_text(f'{{"url": "{source.as_uri()}", "dir_info": {{}}}}')
    assert extras.install_command("ray") == "pip install 'stridebench[ray]'"  # the checkout is gone
    source.mkdir()
    (source / "pyproject.toml").touch()
    assert extras.install_command("ray") == f"pip install '{source}[ray]'"
    monkeypatch.chdir(source)
    assert extras.install_command("ray") == "pip install '.[ray]'"


# Standard streams that the caller closed.


CODE = (
    "import sys\nfrom stridebench.harness.machine.surroundings import open_closed_streams, stdout_on_stderr\n"
    "open_closed_streams()\n"
    "file = open(sys.argv[1], 'w')\nassert file.fileno() > 2\n"
    "with stdout_on_stderr():\n    print('lost')\nprint('lost')\nprint('lost', file=sys.stderr)\nsys.stdin.read()\n"
    "file.write('kept')\n"
)


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)], ids=str)
def test_closed_streams_take_nothing_of_a_file(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, "-c", CODE, str(tmp_path / "file")]
    subprocess.run(command, preexec_fn=close, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert (tmp_path / "file").read_text() == "kept"


# Threads that take turns stay on one core.


pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell its cores")


def test_this_thread_and_those_it_starts_have_one_core_and_then_all_again_after_an_error_too() -> None:
    before, inside = os.sched_getaffinity(0), []
    with pytest.raises(ValueError, match="inside"), on_one_core():
        thread = threading.Thread(target=lambda: inside.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert os.sched_getaffinity(0) == inside[0] and len(inside[0]) == 1
        raise ValueError("inside")
    assert os.sched_getaffinity(0) == before


def test_processes_that_share_the_work_have_a_core_each() -> None:
    cores = sorted(os.sched_getaffinity(0))
    try:
        for number in range(len(cores) + 1):
            be_number(number)
            with on_one_core():
                assert os.sched_getaffinity(0) == {cores[number % len(cores)]}
    finally:
        be_number(None)


def test_a_system_that_forbids_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with on_one_core():
        pass


# The program that a message tells a user to type.


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "stride").write_text("#!/bin/sh\n")
    (folder / "stride").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_program_is_typed_by_its_name_if_it_is_found_and_by_its_path_if_not(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("stride") == ".venv/bin/stride", "the environment is not activated"
    assert typed("pytest") == "pytest", "the environment lacks it"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(programs / "stride", other)
    monkeypatch.setenv("PATH", str(other))
    assert typed("stride") == ".venv/bin/stride", "another environment has one too"
    monkeypatch.chdir(other)
    assert typed("stride") == str(programs / "stride"), "from another folder"
    monkeypatch.setenv("PATH", str(programs))
    assert typed("stride") == "stride", "the environment is activated"
