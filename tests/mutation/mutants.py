"""What is mutated: the spine's modules, the places where cosmic-ray's operators apply, and a seeded sample of them."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    "harness/core/loop.py",
    "harness/core/step_rows.py",
    "harness/core/session.py",
    "harness/core/sampling.py",
    "harness/core/draws.py",
    "harness/record/stats.py",
    "harness/record/paired_tests.py",
    "harness/record/columns.py",
    "harness/record/metrics.py",
    "harness/proof",
    "harness/audit",
    "reports/gate/baseline.py",
    "reports/gate/decision.py",
    "reports/summary.py",
    "reports/flags.py",
    "reports/finished_cell.py",
    "harness/backbones/slots",
)
"""``reports/gate/compare.py`` decides nothing: it prints two runs beside each other."""
OPERATORS = ("core/AddNot", "core/NumberReplacer", "core/ZeroIterationForLoop", "core/Replace")
SYNONYMS = ("Is_Eq", "Eq_Is", "IsNot_NotEq", "NotEq_IsNot")
"""Comparisons that agree wherever the operand is None, a name or a small number."""

Place = tuple[int, int]
"""Line, from 1, and column, from 0."""


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


def files() -> list[Path]:
    """The modules of the spine."""
    paths = [ROOT / target for target in TARGETS]
    return sorted(file for path in paths for file in ([path] if path.is_file() else path.glob("*.py")))


def inert(source: str) -> list[tuple[Place, Place]]:
    """Begin and end of what has no effect at run time: annotations, error messages, tests of TYPE_CHECKING."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            nodes.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.Raise):
            nodes.append(node.exc)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node.test)
    return [((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)) for node in nodes if node]


def mutants() -> list[Mutant]:
    """Every mutant of the spine, in a fixed order."""
    return [mutant for path in files() for mutant in mutants_of(path)]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """The mutants of one module."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text(encoding="utf-8")
    spans = inert(source)
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        if not name.startswith(OPERATORS) or name.endswith(SYNONYMS):
            continue
        operator = get_operator(name)()
        places = [begin for node in nodes for begin, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            if not any(begin <= (line, column) < end for begin, end in spans):
                yield Mutant(str(path.relative_to(ROOT)), name, occurrence, line, column)


def sample(population: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """A seeded sample: places first, then one operator of each, so that arithmetic does not outweigh the rest."""
    places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for mutant in population:
        places[(mutant.file, mutant.line, mutant.column)].append(mutant)
    generator = random.Random(seed)
    chosen = generator.sample(sorted(places), min(size, len(places)))
    return [generator.choice(places[place]) for place in chosen]
