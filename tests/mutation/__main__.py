"""Mutation testing of the spine: `python -m tests.mutation [--sample 300] [--seed 0] [--workers 2]`.

Mutants are made by cosmic-ray's operators. Each runs against the tests that cover its line, in a forked process of a
copy of the tree, quickest tests first. Finished mutants are appended to ``.mutants/results.jsonl`` and are not run
again, so an interrupted run goes on where it stopped; `--fresh` begins anew. The summary is written to
``tests/mutation/results.json``, with every survivor; the reasons of survivors that cannot be killed stand in
``tests/mutation/survivors.yaml``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".mutants"
TARGETS = (
    "harness/core/loop.py",
    "harness/core/session.py",
    "harness/core/sampling.py",
    "harness/core/draws.py",
    "harness/record/stats.py",
    "harness/record/columns.py",
    "harness/record/metrics.py",
    "reports/gate/gate.py",
    "harness/backbones/slots",
)
TESTS = ("tests/harness", "tests/methods", "tests/reports")
TREES = ("harness", "methods", "tasks", "reports", "tests", "pyproject.toml", "README.md")
PREFIXES = ("core/AddNot", "core/NumberReplacer", "core/ZeroIterationForLoop", "core/Replace")
BUDGET_S = 30.0
"""Test time spent on one mutant before it counts as a survivor."""


@dataclass(frozen=True)
class Mutant:
    """One mutation: the n-th place of a file where an operator applies."""

    file: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.file}:{self.line}:{self.column} {self.operator}#{self.occurrence}"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: killed, survived, timeout or uncovered; ``tests`` is how many could have seen it."""

    key: str
    outcome: str
    tests: int
    seconds: float
    before: str
    after: str


def files() -> list[Path]:
    """The modules of the spine."""
    paths = [ROOT / target for target in TARGETS]
    return sorted(file for path in paths for file in ([path] if path.is_file() else path.glob("*.py")))


def ignored_lines(source: str) -> set[int]:
    """Lines whose mutants mean nothing at run time: annotations, decorators, docstrings and error messages."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
            parts = [node.returns, *node.decorator_list, *(argument.annotation for argument in arguments)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.Raise):
            parts = [node]
        for part in parts:
            if part is not None:
                lines.update(range(part.lineno, part.end_lineno + 1))
    return lines


def mutants() -> list[Mutant]:
    """Every mutant of the spine, in a fixed order."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    found = []
    for path in files():
        source = path.read_text(encoding="utf-8")
        ignored = ignored_lines(source)
        tree = get_ast(source)
        for name in sorted(name for name in operator_names() if name.startswith(PREFIXES)):
            operator = get_operator(name)()
            places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
            for occurrence, ((line, column), _) in enumerate(places):
                if line not in ignored:
                    found.append(Mutant(str(path.relative_to(ROOT)), name, occurrence, line, column))
    return found


def sample(population: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """A seeded sample: places first, then one operator of each, so that arithmetic does not outweigh the rest."""
    places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for mutant in population:
        places[(mutant.file, mutant.line, mutant.column)].append(mutant)
    random_ = random.Random(seed)
    chosen = random_.sample(sorted(places), min(size, len(places)))
    return [random_.choice(places[place]) for place in chosen]


def measure_coverage() -> None:
    """Run the quick tests once; write which test covers which line and how long each takes."""
    modules = sorted({str(path.parent.relative_to(ROOT)) for path in files()})
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not model and not gpu", *TESTS]
    command += [*(f"--cov={module}" for module in modules), "--cov-context=test", "--cov-report="]
    command += ["-p", "no:cacheprovider", f"--junitxml={WORK / 'tests.xml'}", "-o", "junit_family=xunit1"]
    environment = {**os.environ, "COVERAGE_FILE": str(WORK / "coverage"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def covering() -> tuple[dict[tuple[str, int], set[str]], dict[str, float]]:
    """Tests by (file, line), and the seconds of each test."""
    from coverage import CoverageData

    data = CoverageData(str(WORK / "coverage"))
    data.read()
    tests: dict[tuple[str, int], set[str]] = defaultdict(set)
    for measured in data.measured_files():
        file = str(Path(measured).relative_to(ROOT))
        for line, contexts in data.contexts_by_lineno(measured).items():
            tests[(file, line)] |= {context.partition("|")[0] for context in contexts if context}
    seconds = {}
    for case in ElementTree.parse(WORK / "tests.xml").iter("testcase"):
        module = str(case.get("classname"))
        path = Path(str(case.get("file") or module.replace(".", "/") + ".py"))
        inside = module.removeprefix(str(path.with_suffix("")).replace("/", ".")).strip(".").replace(".", "::")
        seconds["::".join(part for part in (str(path), inside, str(case.get("name"))) if part)] = float(
            case.get("time") or 0
        )
    return tests, seconds


def quickest(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Tests in the order of their duration, as many as fit the budget; at least one."""
    total, chosen = 0.0, []
    for test in sorted(tests, key=lambda test: seconds.get(test, 1.0)):
        total += seconds.get(test, 1.0)
        if chosen and total > BUDGET_S:
            break
        chosen.append(test)
    return chosen


def copy_tree(target: Path) -> None:
    """The packages and tests under ``target``; weights are linked."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name in TREES:
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, target / name)
        else:
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "weights", "golden"))
    (target / "harness" / "backbones" / "weights").symlink_to(ROOT / "harness" / "backbones" / "weights")


def run_tests(tree: Path, tests: Sequence[str], limit_s: float) -> str:
    """Outcome of the tests in a forked process of the tree."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
        sys.dont_write_bytecode = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(tree), *tests])
        os._exit(int(code))
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def try_mutant(mutant: Mutant, tests: Sequence[str], tree: Path, limit_s: float) -> Outcome:
    """Write the mutant into the tree, run its tests, and put the file back."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path = tree / mutant.file
    original = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutate_code(original, get_operator(mutant.operator)(), mutant.occurrence)
    before = original.splitlines()[mutant.line - 1].strip()
    after = changed.splitlines()[mutant.line - 1].strip()
    begin = time.monotonic()
    path.write_text(changed, encoding="utf-8")
    try:
        outcome = run_tests(tree, tests, limit_s) if tests else "uncovered"
    finally:
        path.write_text(original, encoding="utf-8")
    return Outcome(mutant.key, outcome, len(tests), round(time.monotonic() - begin, 2), before, after)


def work(share: Sequence[tuple[Mutant, list[str], float]], number: int) -> None:
    """One worker's share, appended to the results one by one."""
    import numpy  # noqa: F401  # what every test imports is loaded once, before the forks
    import pandas  # noqa: F401
    import torch

    torch.set_num_threads(1)
    tree = WORK / f"worker{number}"
    copy_tree(tree)
    for mutant, tests, limit_s in share:
        outcome = try_mutant(mutant, tests, tree, limit_s)
        with (WORK / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
    shutil.rmtree(tree)


def finished() -> dict[str, Outcome]:
    """Outcomes so far."""
    path = WORK / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {outcome.key: outcome for outcome in (Outcome(**json.loads(line)) for line in lines)}


def summarise(chosen: Sequence[Mutant], arguments: argparse.Namespace) -> int:
    """Write the summary; 0 where at least nine in ten are killed."""
    done = finished()
    outcomes = [done[mutant.key] for mutant in chosen if mutant.key in done]
    killed = sum(outcome.outcome in ("killed", "timeout") for outcome in outcomes)
    survivors = [asdict(outcome) for outcome in outcomes if outcome.outcome in ("survived", "uncovered")]
    share = killed / len(outcomes) if outcomes else 0.0
    document = {"seed": arguments.seed, "mutants": len(outcomes), "killed": killed, "share": round(share, 3)}
    document["seconds"] = round(sum(outcome.seconds for outcome in outcomes), 1)
    text = json.dumps({**document, "survivors": survivors}, indent=1)
    (ROOT / "tests" / "mutation" / "results.json").write_text(text + "\n", encoding="utf-8")
    for survivor in survivors:
        print(f"{survivor['outcome']}: {survivor['key']}\n  - {survivor['before']}\n  + {survivor['after']}")
    print(f"{killed} of {len(outcomes)} mutants killed ({share:.1%})")
    return 0 if share >= 0.9 else 1


def shares(todo: Sequence[tuple[Mutant, list[str], float]], workers: int) -> Iterator[Sequence[Any]]:
    """Every worker's part of the mutants."""
    for number in range(workers):
        yield todo[number::workers]


def main() -> int:
    """Run the sample."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="mutation testing of the spine")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget finished mutants and measured coverage")
    arguments = parser.parse_args()
    if arguments.fresh and WORK.exists():
        shutil.rmtree(WORK)
    WORK.mkdir(exist_ok=True)
    if not (WORK / "tests.xml").exists():
        measure_coverage()
    tests, seconds = covering()
    chosen, done = sample(mutants(), arguments.sample, arguments.seed), finished()
    todo = []
    for mutant in chosen:
        if mutant.key not in done:
            nodes = quickest(tests.get((mutant.file, mutant.line), set()), seconds)
            todo.append((mutant, nodes, 30.0 + 5 * sum(seconds.get(node, 1.0) for node in nodes)))
    children = []
    for number, share in enumerate(shares(todo, arguments.workers)):
        child = os.fork()
        if child == 0:
            work(share, number)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return summarise(chosen, arguments)


if __name__ == "__main__":
    sys.exit(main())
