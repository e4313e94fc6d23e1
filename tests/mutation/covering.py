"""Which tests cover a line, and which of them try a mutant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.mutation.mutants import ROOT, Mutant
from tests.mutation.trials import lines


@dataclass(frozen=True)
class Covering:
    """Tests by file and line, and their seconds.

    Attributes:
        tests: those that run a line; a fixture's lines count for every test of the file that it first ran for.
        imported: lines that run while modules are imported; every test of their file may see them.
        seconds: CPU time of each test that passed; others try no mutant.
    """

    tests: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    imported: set[tuple[str, int]] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, tree: Path) -> None:
        """What was measured in a tree."""
        from coverage import CoverageData

        self.seconds.update({row["test"]: row["seconds"] for row in lines(tree.with_suffix(".tests")) if row["passed"]})
        data = CoverageData(str(tree.with_suffix(".coverage")))
        data.read()
        for measured in data.measured_files():
            file = measured.partition(f"/{tree.name}/")[2]
            for line, contexts in data.contexts_by_lineno(measured).items():
                self.tests[(file, line)] |= expanded(contexts, self.seconds)
                if "" in contexts:
                    self.imported.add((file, line))

    def of(self, mutant: Mutant) -> set[str]:
        """The tests that may notice a mutant."""
        places = {(mutant.file, line) for line in statement(mutant.file, mutant.line)}
        tests = set().union(*(self.tests.get(place, set()) for place in places))
        if not tests and places & self.imported:
            tests = set().union(*(test_files for (file, _), test_files in self.tests.items() if file == mutant.file))
        return tests & self.seconds.keys()


@cache
def statement(file: str, line: int) -> range:
    """The lines of the smallest statement at a line, without its body: Python runs a condition by lines of its own."""
    smallest = range(line, line + 1)
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if node.lineno <= line <= end and (len(smallest) == 1 or end - node.lineno < len(smallest)):
                smallest = range(node.lineno, max(end, line) + 1)
    return smallest


def expanded(contexts: Iterable[str], tests: Iterable[str]) -> set[str]:
    """The tests of coverage's contexts: ``test|run`` is that test, ``test|setup`` every test of its file."""
    pairs = [context.rpartition("|")[::2] for context in contexts if context]
    files = {test.partition("::")[0] for test, phase in pairs if phase == "setup"}
    shared = {test for test in tests if test.partition("::")[0] in files} if files else set()
    return shared | {test for test, phase in pairs if phase == "run"}


def stages(file: str, tests: Iterable[str], seconds: Mapping[str, float], budget: float) -> list[list[str]]:
    """The tests of the mirroring test file, then the others; the quickest first, as many as fit the budget."""
    path = Path(file)
    mirror = f"tests/{path.parent}/test_{path.stem}.py"
    ordered = sorted(tests, key=lambda test: (not test.startswith(mirror), seconds[test], test))
    near: list[str] = []
    far: list[str] = []
    total = 0.0
    for test in ordered:
        total += seconds[test]
        if total <= budget or not (near or far):
            (near if test.startswith(mirror) else far).append(test)
    return [stage for stage in (near, far) if stage]
