"""Beginnings of texts for a teacher to go on with: functions and prose of Python's standard library, and programs
of `harness.synthetic.code`. No benchmark's prompts are among them.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from harness.synthetic.code import program

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "idle_test"}
LARGEST = 150_000
"""Bytes of a source file that is read."""
HELD_OUT = 12
"""One prefix in so many is held out, chosen by its text."""


def held_out(prefix: str) -> bool:
    """Whether it is for evaluation only."""
    return hashlib.sha256(prefix.encode()).digest()[1] % HELD_OUT == 0


def prefixes(seed: int, procedural: int) -> list[str]:
    """All of them once, shuffled: of the library, and so many of the procedural ones."""
    random = np.random.default_rng(seed)
    made = (program(random).head for _ in range(procedural))
    found = sorted({*library(), *made})
    return [found[index] for index in random.permutation(len(found))]


def library() -> Iterator[str]:
    """Heads of documented functions, and prose of long docstrings, in the order of the files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED & set(path.relative_to(root).parts) or path.stat().st_size > LARGEST:
            continue
        try:
            yield from of_source(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates and files of other encodings


def of_source(source: str) -> Iterator[str]:
    """What one module gives."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            continue
        said = ast.get_docstring(node)
        if not said:
            continue
        if isinstance(node, ast.FunctionDef):
            end = node.body[0].end_lineno or node.lineno
            yield textwrap.dedent("".join(lines[node.lineno - 1 : end])).rstrip()
        elif len(said) > 300:
            yield " ".join(islice(said.split(), 40))
