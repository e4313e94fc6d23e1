"""Runs of pytest in a copy of the tree: each in a forked process with limits, every test's outcome written down."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stridebench.harness.run.checkouts import link_packages
from tests.mutation.mutants import ROOT

FOLDERS = ("harness", "methods", "tasks", "reports", "tests", "docs", "examples")
WEIGHTS = "harness/backbones/weights"
MEMORY = 32 * 2**30
"""Address space of a trial; a mutant may ask for any amount."""
PYTEST = ("-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=native")
"""Which test fails is all that is asked: to explain how two large values differ takes longer than most trials."""
PATIENCE = 10
"""Wall time a trial may take for each second of CPU time that it is allowed: it may wait on a loaded machine."""


class Trial(NamedTuple):
    """How a run of pytest ended: its exit status, the tests that failed and its CPU seconds."""

    status: str
    failed: list[str]
    seconds: float


class Recorder:
    """A pytest plugin that appends a JSON line for each test: id, CPU seconds, whether it passed."""

    def __init__(self, path: Path, switch: Callable[[str], object] | None = None) -> None:
        self._path = path
        self._switch = switch or (lambda context: None)
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        begin = sum(os.times()[:4])
        result = yield
        line = {"test": item.nodeid, "seconds": sum(os.times()[:4]) - begin, "passed": item.nodeid not in self._failed}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        self._switch(f"{item.nodeid}|setup")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self._switch(f"{item.nodeid}|run")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)


def copy_tree(target: Path) -> None:
    """The checkout under ``target``, without what git ignores and hidden folders; weights are linked."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.ini"), ROOT / "LICENSE"):
        shutil.copy(path, target)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (target / WEIGHTS).symlink_to(ROOT / WEIGHTS)
    link_packages(target, target)


def preload(tree: Path, test_files: Sequence[str]) -> None:
    """Import what these tests import from elsewhere, once, before processes are forked; their compiled files stay."""
    names = tree.with_suffix(".modules")
    code = "import sys, pytest; pytest.main(sys.argv[2:]); print(*sys.modules, file=open(sys.argv[1], 'w'))"
    unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")  # the compiled modules are kept in the tree
    environment = {key: value for key, value in os.environ.items() if key not in unset} | {"PYTHONPATH": str(tree)}
    collect = [*PYTEST, "--collect-only", "--rootdir", str(tree), *test_files]
    subprocess.run([sys.executable, "-c", code, names, *collect], cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    for name in names.read_text().split():
        if name.partition(".")[0] not in ("stridebench", "tests"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a trial collects garbage, and looks at its own objects alone


def run_tests(tree: Path, tests: Sequence[str], limit_s: float, cover: Sequence[str] = (), stop: bool = True) -> Trial:
    """Run tests in a forked process of the tree.

    Args:
        tests: ids or paths. limit_s: CPU time. cover: files whose coverage is measured. stop: at the first failure.

    Returns:
        Status: passed, failed, or timeout.
    """
    log = tree.with_suffix(".tests")
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os._exit(_pytest(tree, tests, int(limit_s), cover, stop))
        finally:
            os._exit(70)
    try:
        status, seconds = _wait(child, PATIENCE * limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests left running, and all of them after ^C
    return Trial(status, [line["test"] for line in lines(log) if not line["passed"]], seconds)


def absent(tree: Path) -> set[str]:
    """Return the test functions of which the last run of the tree did not find an id.

    A mutant may change the parameters that ids are made of, and pytest names the function alone.
    """
    log = tree.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    prefix = f"ERROR: not found: {tree}/"
    return {line.removeprefix(prefix) for line in log.splitlines() if line.startswith(prefix)}


def lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines; none where it is absent."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _pytest(tree: Path, tests: Sequence[str], limit_s: int, cover: Sequence[str], stop: bool) -> int:
    """The forked process: its limits, its place, and pytest."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(tree)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, tree))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stridebench", "tests")]:
        del sys.modules[name]  # otherwise their submodules come from this checkout, not from the tree
    output = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    arguments = [*PYTEST, "--rootdir", str(tree), *(["-x"] if stop else []), *tests]
    if not cover:
        return int(pytest.main(arguments, plugins=[Recorder(tree.with_suffix(".tests"))]))
    from coverage import Coverage

    coverage = Coverage(str(tree.with_suffix(".coverage")), include=[str(tree / file) for file in cover])
    coverage.start()
    code = pytest.main(arguments, plugins=[Recorder(tree.with_suffix(".tests"), coverage.switch_context)])
    coverage.stop()
    coverage.save()
    return int(code)


def _wait(child: int, limit_s: float) -> tuple[str, float]:
    """How the process ended, and its CPU seconds; killed where it takes longer."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            return "passed" if code == 0 else "timeout" if code == -signal.SIGXCPU else "failed", seconds
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    usage = os.wait4(child, 0)[2]
    return "timeout", usage.ru_utime + usage.ru_stime
