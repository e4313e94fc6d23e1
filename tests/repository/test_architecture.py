"""Who may import whom, what stays free of torch, and how long a method file may be."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "methods", "tasks", "reports")
SHARED_PARTS = ("drafters", "verifiers", "trees", "training")
TORCH_FREE = ("harness.errors", "harness.record.ledger", "harness.record.stats", "harness.record.store")
METHOD_CEILING = 150

# What a package may name of the four. The same lists stand in pyproject.toml for import-linter; there they
# are checked over whatever exists, here each one is shown to catch an import planted against it.
PLANTED = {
    "harness-knows-nobody": ("harness/planted.py", "import methods.drafters"),
    "methods-see-the-contract": ("methods/planted.py", "from harness.plan import presets"),
    "tasks-see-the-task": ("tasks/planted.py", "from harness.core.draft import Need"),
    "reports-see-the-record": ("reports/planted.py", "import harness.registry"),
}


class Done(NamedTuple):
    code: int
    text: str


def python(*arguments: str, cwd: Path) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    return Done(done.returncode, done.stdout + done.stderr)


def lint_imports(root: Path, *options: str) -> Done:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return python("-c", command, "--no-cache", *options, cwd=root)


def modules(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Every module that a file names, ``from a import b`` as both ``a`` and ``a.b``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the whole name"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def sibling_imports(path: Path) -> set[str]:
    """What a file of methods imports from methods beyond the shared parts."""
    shared = tuple(f"methods.{part}" for part in SHARED_PARTS)
    named = {name for name in imports(path) if name.startswith("methods.")}
    return {name for name in named if not any(f"{name}.".startswith(f"{part}.") for part in shared)}


def copy_packages(root: Path) -> None:
    """The four packages' Python files and pyproject.toml, under ``root``."""
    for path in [ROOT / "pyproject.toml", *(file for package in PACKAGES for file in modules(package))]:
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())


def test_import_contracts_hold():
    done = lint_imports(ROOT)
    assert done.code == 0, done.text
    assert f"{len(PLANTED)} kept, 0 broken" in done.text


@pytest.mark.parametrize("contract", PLANTED)
def test_import_contract_catches_a_planted_import(contract, tmp_path):
    copy_packages(tmp_path)
    file, line = PLANTED[contract]
    (tmp_path / file).write_text(f"{line}\n")
    done = lint_imports(tmp_path, "--contract", contract)
    assert done.code == 1, done.text
    assert file.removesuffix(".py").replace("/", ".") in done.text


def test_methods_never_import_each_other():
    guilty = {dotted(path): found for path in modules("methods") if (found := sibling_imports(path))}
    assert guilty == {}, "move what they share to methods/drafters, methods/verifiers or methods/trees.py"


def test_an_import_between_methods_is_seen(tmp_path):
    file = tmp_path / "planted.py"
    file.write_text("from methods import drafters, jacobi\nfrom methods.drafters.ngram import Ngram\n")
    assert sibling_imports(file) == {"methods.jacobi"}


def named_imports(path: Path) -> set[str]:
    """First words of the strings given to ``import_module``, of the fixed part where they are formatted."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(name, ast.Constant):
                found.add(str(name.value).split(".")[0])
    return found


def test_harness_names_the_others_as_strings_in_one_file():
    """A name in a string is an import in disguise; discover.py is where it is allowed."""
    others = {"methods", "tasks", "reports"}
    assert [dotted(path) for path in modules("harness") if named_imports(path) & others] == ["harness.discover"]


def torch_free() -> list[str]:
    existing = {dotted(path) for package in ("harness", "reports") for path in modules(package)}
    return sorted(name for name in existing if name in TORCH_FREE or name.split(".")[0] == "reports")


IMPORT_WITHOUT_TORCH = """
    import importlib, sys
    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("torch", "transformers", "jaxtyping"):
                raise AssertionError(name + " is imported")
    sys.meta_path.insert(0, Refuse())
    for name in sys.argv[1:]:
        importlib.import_module(name)
"""


def test_reports_and_what_they_read_import_no_torch():
    """In an interpreter that refuses torch, so that an import inside a try cannot hide."""
    done = python("-c", textwrap.dedent(IMPORT_WITHOUT_TORCH), *torch_free(), cwd=ROOT)
    assert done.code == 0, done.text


def test_an_import_of_torch_is_refused():
    done = python("-c", textwrap.dedent(IMPORT_WITHOUT_TORCH), "harness.core.draft", cwd=ROOT)
    assert done.code != 0
    assert "torch is imported" in done.text


@pytest.mark.parametrize("path", sorted((ROOT / "methods").rglob("*.py")), ids=lambda path: path.name)
def test_a_method_fits_its_ceiling(path):
    lines = len(path.read_text().splitlines())
    assert lines <= METHOD_CEILING, f"{path.name} has {lines} lines; move a part to drafters or verifiers"
