"""Mutation testing of the spine: `python -m tests.mutation [--sample 300] [--seed 0] [--workers 2] [--again]`.

Each mutant runs against the tests that cover its line, in a forked process of a copy of the tree: first those of the
file that mirrors the mutated one, then the others, quickest first. Finished mutants are appended to
``.mutants/outcomes.jsonl`` and are not run again, so an interrupted run goes on where it stopped. `--again` measures
the coverage of the tests that `--tests` names, new ones say, and runs the survivors without a reason once more.
Reasons, of mutants that no test can kill, stand in ``tests/mutation/survivors.yaml``. Everything is written to
``tests/mutation/results.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from tests.mutation.covering import Covering, stages
from tests.mutation.mutants import ROOT, Mutant, files, mutants, sample
from tests.mutation.trials import absent, copy_tree, lines, preload, run_tests

WORK = ROOT / ".mutants"
COVERED = WORK / "covered"
OUTCOMES = WORK / "outcomes.jsonl"
COMMANDS = WORK / "commands.txt"
RESULTS = ROOT / "tests" / "mutation" / "results.json"
SURVIVORS = RESULTS.with_name("survivors.yaml")
TESTS = ("tests/harness", "tests/methods", "tests/reports")
QUICK = ("-m", "not slow and not model and not gpu")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "STRIDE_NO_SHAPE_CHECKS": "1",
}
"""A mutant has to be noticed by a test: shape checks take half of the time and are no tests."""
FINAL = ("killed", "timeout", "invalid")
START_S = 10.0
"""CPU time that a process may take beside its tests."""
SLOWER = 4
"""A mutant whose tests take so many times their usual CPU time hangs."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Args:
        outcome: killed, timeout (which counts as killed), survived, uncovered (no test runs its line), or invalid (it
            is no Python, and not counted).
        tests: how many could have noticed it. killer: the first test that failed; "" where none was collected.
        before, after: its first changed line. seconds: CPU time.
    """

    key: str
    outcome: str
    tests: int
    killer: str
    seconds: float
    before: str
    after: str

    @property
    def change(self) -> tuple[str, str, str]:
        """Its file, and the line before and after."""
        return self.key.partition(":")[0], self.before, self.after

    @property
    def killed(self) -> bool:
        """Whether a test noticed."""
        return self.outcome in ("killed", "timeout")


@dataclass(frozen=True)
class Task:
    """A mutant, and the tests to run one after the other."""

    mutant: Mutant
    stages: list[list[str]]
    limits_s: list[float]


def measure_coverage(paths: Sequence[str], workers: int) -> None:
    """Run the quick tests once in copies of the tree: which lines each covers, how long it takes, whether it passes."""
    test_files = sorted({file for path in paths for file in _test_files(ROOT / path)})
    part = WORK / "measured"
    shutil.rmtree(part, ignore_errors=True)

    def measure(number: int) -> None:
        tree = part / f"tree{number}"
        copy_tree(tree)
        cover = [str(path.relative_to(ROOT)) for path in files()]
        run_tests(tree, [*QUICK, *test_files[number::workers]], 7200.0, cover, stop=False)
        if not lines(tree.with_suffix(".tests")):
            sys.exit(f"no test was run, perhaps because a file cannot be collected: see {tree.with_suffix('.log')}")
        shutil.rmtree(tree)

    parallel(measure, min(workers, len(test_files)))
    COVERED.mkdir(exist_ok=True)
    part.rename(COVERED / str(len(list(COVERED.iterdir()))))


def _test_files(path: Path) -> list[str]:
    if "::" in path.name:
        return [str(path.relative_to(ROOT))]
    paths = [path] if path.is_file() else path.rglob("test_*.py")
    return [str(file.relative_to(ROOT)) for file in paths]


def covering() -> Covering:
    """What was measured, in one folder a measurement; a folder gets its number when it is complete."""
    result = Covering()
    for file in sorted(COVERED.glob("*/*.coverage")):
        result.add(file.with_suffix(""))
    return result


def parallel(job: Callable[[int], None], workers: int) -> None:
    """Run ``job(0)`` and on, each in a forked process."""
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            try:
                job(number)
                os._exit(0)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit("a worker failed; run the same command again to go on")


def compiles(source: str) -> bool:
    """Whether a mutated module is Python: an operator may take the stars of an unpacked argument for a product."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def try_mutant(task: Task, tree: Path) -> Outcome:
    """Write the mutant into the tree, run its tests, and put the file back."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    mutant, path = task.mutant, tree / task.mutant.file
    original = path.read_text(encoding="utf-8")
    changed = mutate_code(original, get_operator(mutant.operator)(), mutant.occurrence)
    pairs = zip(original.splitlines(), changed.splitlines(), strict=True)
    before, after = next((old.strip(), new.strip()) for old, new in pairs if old != new)
    if not compiles(changed):
        return Outcome(mutant.key, "invalid", 0, "", 0.0, before, after)
    outcome, killer, seconds = "survived" if task.stages else "uncovered", "", 0.0
    path.write_text(changed, encoding="utf-8")
    try:
        for tests, limit_s in zip(task.stages, task.limits_s, strict=True):
            trial = run_tests(tree, tests, limit_s)
            seconds += trial.seconds
            if trial.status == "failed" and (gone := absent(tree)):  # which is no failure
                if not (known := [test for test in tests if test.partition("[")[0] not in gone]):
                    continue
                trial = run_tests(tree, known, limit_s)
                seconds += trial.seconds
            if trial.status != "passed":
                outcome = "timeout" if trial.status == "timeout" else "killed"
                killer = next(iter(trial.failed), "")
                break
    finally:
        path.write_text(original, encoding="utf-8")
    return Outcome(mutant.key, outcome, sum(map(len, task.stages)), killer, round(seconds, 1), before, after)


def run(tasks: Sequence[Task], workers: int) -> None:
    """Try the mutants, every worker in its own tree, and append the outcomes one by one."""

    def work(number: int) -> None:
        tree = WORK / f"tree{number}"
        copy_tree(tree)
        preload(tree, sorted({test.partition("::")[0] for task in tasks for stage in task.stages for test in stage}))
        for task in tasks[number::workers]:
            outcome = try_mutant(task, tree)
            with OUTCOMES.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        shutil.rmtree(tree)

    parallel(work, workers)


def finished() -> dict[str, Outcome]:
    """Outcomes so far, the latest of each mutant."""
    return {line["key"]: Outcome(**line) for line in lines(OUTCOMES)}


def failing(tests: Sequence[str]) -> list[str]:
    """Those that fail without a mutant, in the order given; an id that is not found fails: pytest then runs none."""
    tree = WORK / "unchanged"
    copy_tree(tree)
    failed = [*run_tests(tree, tests, 3600.0, stop=False).failed, *sorted(absent(tree))] if tests else []
    shutil.rmtree(tree)
    return failed


def reasons() -> dict[tuple[str, str, str], str]:
    """Why a mutant cannot be killed, by its file and its first changed line before and after."""
    rows = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8"))
    return {(row["file"], row["before"], row["after"]): row["reason"] for row in rows}


def document(outcomes: Sequence[Outcome], covered_s: float, machine: str) -> dict[str, Any]:
    """The results: what was run where, the share killed, the survivors with their reasons, and every outcome."""
    why, valid = reasons(), [outcome for outcome in outcomes if outcome.outcome != "invalid"]
    survivors = [outcome for outcome in valid if not outcome.killed]
    return {
        "commands": COMMANDS.read_text(encoding="utf-8").splitlines(),
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "machine": machine,
        "cosmic_ray": version("cosmic-ray"),
        "cpu_seconds": {"coverage": round(covered_s), "mutants": round(sum(outcome.seconds for outcome in outcomes))},
        "sample": len(outcomes),
        "mutants": len(valid),
        "killed": len(valid) - len(survivors),
        "share": round(1 - len(survivors) / len(valid), 4),
        "survivors": [{"key": one.key, "reason": why.get(one.change)} for one in survivors],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def summarise(outcomes: Sequence[Outcome], covered_s: float, machine: str) -> int:
    """Write and print the results; 0 where at least 92 in 100 are killed."""
    killers = sorted({outcome.killer for outcome in outcomes if outcome.killer})
    if failed := failing(killers):
        print("the results are void: without a mutant these tests fail too:", *failed, sep="\n")
        return 2
    results = document(outcomes, covered_s, machine)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for outcome in outcomes:
        if outcome.outcome in ("survived", "uncovered"):
            print(f"{outcome.outcome}: {outcome.key}\n  - {outcome.before}\n  + {outcome.after}")
    print(f"{results['killed']} of {results['mutants']} mutants killed ({results['share']:.1%})")
    return 0 if results["share"] >= 0.92 else 1


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="mutation testing of the spine")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--first", type=int, help="stop after so many mutants of the sample, in its order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files, folders and ids whose quick tests try them")
    parser.add_argument("--budget", type=float, default=30.0, help="CPU seconds of tests before a mutant survives")
    parser.add_argument("--machine", default="", help="the machine in words, for the results")
    parser.add_argument("--again", action="store_true", help="measure more tests and run the survivors again")
    parser.add_argument("--fresh", action="store_true", help="forget finished mutants and measured coverage")
    return parser.parse_args()


def main() -> int:
    """Run the sample."""
    arguments = options()
    os.environ.update(ENVIRONMENT)
    if arguments.fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(exist_ok=True)
    with COMMANDS.open("a", encoding="utf-8") as file:
        file.write(shlex.join(["python", "-m", "tests.mutation", *sys.argv[1:]]) + "\n")
    if arguments.again:
        kept = [one for one in finished().values() if one.outcome in FINAL or one.change in reasons()]
        OUTCOMES.write_text("".join(json.dumps(asdict(outcome)) + "\n" for outcome in kept), encoding="utf-8")
    if arguments.again or not COVERED.exists():
        measure_coverage(arguments.tests, arguments.workers)
    covered, done = covering(), finished()
    chosen = sample(mutants(), arguments.sample, arguments.seed)[: arguments.first]
    tasks = []
    for mutant in chosen:
        if mutant.key not in done:
            plan = stages(mutant.file, covered.of(mutant), covered.seconds, arguments.budget)
            limits_s = [START_S + SLOWER * sum(covered.seconds[test] for test in stage) for stage in plan]
            tasks.append(Task(mutant, plan, limits_s))
    run(tasks, arguments.workers)
    done = finished()
    return summarise([done[mutant.key] for mutant in chosen], sum(covered.seconds.values()), arguments.machine)


if __name__ == "__main__":
    sys.exit(main())
