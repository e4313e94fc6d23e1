"""What a run stores of the methods of other packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stridebench.harness.plan.cells import Plan, plugin_identity
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.registry import METHODS
from tests.support.one_by_one import register

SOURCE = """
from dataclasses import dataclass
from tests.support.one_by_one import OneByOne

@dataclass(frozen=True)
class Packaged(OneByOne):
    pass
"""


@pytest.fixture()
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package whose method is called ``packaged``."""
    folder = tmp_path / "stride_packaged"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "inner" / "more.py").write_text("ONE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("stride_packaged")
    monkeypatch.setitem(sys.modules, "stride_packaged", module)
    register(monkeypatch, METHODS, "packaged", module.Packaged)
    monkeypatch.setattr(METHODS, "_plugins", {"packaged"})
    yield folder
    del sys.modules["stride_packaged"]


def plan() -> Plan:
    suite = {"name": "t", "backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}], "methods": METHOD_NAMES}
    return expand(resolve_again(suite))


METHOD_NAMES = ["packaged", "speculative"]


def test_every_python_file_counts_and_no_other(package: Path) -> None:
    first = plugin_identity("packaged")
    assert first is not None and len(first["sha256"]) == 64
    (package / "notes.txt").write_text("other")
    assert plugin_identity("packaged") == first
    (package / "inner" / "more.py").write_text("ONE = 2")
    assert plugin_identity("packaged") != first


def test_a_method_of_ours_has_none(package: Path) -> None:
    assert plugin_identity("speculative") is None


def test_the_key_of_a_run_and_the_cell_hold_it(package: Path) -> None:
    manifest = plan().manifest()
    identity = plugin_identity("packaged")
    assert manifest["key"]["plugins"] == {"packaged": identity}
    stored = {cell["method"]: cell.get("plugin") for cell in manifest["cells"].values()}
    assert stored == {"autoregressive": None, "speculative": None, "packaged": identity}


def test_the_id_of_a_cell_stays_so_that_a_gate_finds_it(package: Path) -> None:
    before = [cell.id for cell in plan().cells]
    (package / "inner" / "more.py").write_text("ONE = 3")
    assert [cell.id for cell in plan().cells] == before
