"""Measure the size of the project against the goals of its redesign: `python -m tests.measures [--first-pass]`.

``--first-pass`` decodes with a small model to count the modules that a run has loaded before its first target pass.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stridebench.harness.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("harness", "methods", "tasks", "reports")
BESIDE = (
    "__init__",
    "net",
    "published",
    "checkpoint",
    "draft_model",
)
"""Modules that serve an algorithm without being part of it."""
PASS = ("run", "--method", "prompt_lookup", "--backbone", "embedded-code", "--task", "programs", "--limit", "1")


def files(*folders: str) -> list[Path]:
    """Return the Python files of these folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines(paths: list[Path]) -> int:
    """Return the number of lines of these files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def files_to_read(method: str) -> list[str]:
    """Return the files that hold a method's algorithm: its file, its drafters' and its verifiers'.

    The file's imports are followed inside `methods/drafters`. Not part of an algorithm are networks, the loading of
    published weights, and checks of a drafter.
    """
    waiting, found = [ROOT / "methods" / f"{method}.py"], set()
    while waiting:
        path = waiting.pop()
        if path in found or path.stem in BESIDE:
            continue
        found.add(path)
        if path.parent.name != "verifiers":
            waiting += _imported_methods(path)
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def _imported_methods(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stridebench.methods"):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            places = [ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in names]
            yield from (place for place in places if place.is_file())


def untyped_signatures() -> int:
    """Return how often ``dict[str, Any]``, or an alias of it, stands in the parameters or the result of a function."""
    count = 0
    for path in files(*FOLDERS):
        text = path.read_text(encoding="utf-8")
        for alias in re.findall(r"^(\w+) = dict\[str, Any\]$", text, re.MULTILINE):
            text = re.sub(rf"\b{alias}\b(?! = )", "dict[str, Any]", text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
                types = [node.returns, *(argument.annotation for argument in given)]
                count += sum(ast.unparse(one).count("dict[str, Any]") for one in types if one is not None)
    return count


def repeated_classes() -> list[str]:
    """Return the names of classes that are defined at the top of more than one file."""
    names = Counter(
        node.name
        for path in files(*FOLDERS)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def modules_at_first_pass() -> int:
    """Return how many of our modules `stride run` has loaded before its first target pass."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.first_pass", *PASS, "--out", f"{folder}/run"]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    return int(json.loads(done.stderr.splitlines()[-1])["ours"])


FIRST_PASS = "modules loaded before the first pass"
MEASURES: Mapping[str, tuple[Callable[[], int], int]] = {
    "lines of Python outside tests": (lambda: lines(files(*FOLDERS)), 64_000),
    "lines of tests": (lambda: lines(files("tests")), 43_000),
    "Python files outside tests": (lambda: len(files(*FOLDERS)), 450),
    "files to read EAGLE-2": (lambda: len(files_to_read("eagle2")), 3),
    "files to read SJD": (lambda: len(files_to_read("sjd")), 3),
    "`dict[str, Any]` in signatures": (untyped_signatures, 40),
    "verbs": (lambda: len(VERBS), 16),
    "class names defined twice": (lambda: len(repeated_classes()), 5),
    FIRST_PASS: (modules_at_first_pass, 150),
}
"""The function of each measure, and its goal: the largest value that it may have."""


def main() -> None:
    """Print a row for each measure: what it is, the value now, and the goal."""
    print("| | now | goal |\n|---|---:|---:|")
    for name, (measure, goal) in MEASURES.items():
        if name != FIRST_PASS or "--first-pass" in sys.argv:
            print(f"| {name} | {measure():,} | at most {goal:,} |")


if __name__ == "__main__":
    main()
