"""Executors: a worker that knows nothing but a dumped suite runs its group into the same folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.plan import suite
from harness.plan.cells import expand
from harness.plan.yaml_lines import Lines
from harness.record.store import Store
from harness.run import executors
from harness.run.options import Options

SUITE = {
    "name": "small",
    "methods": ["sjd", {"name": "sjdpp", "tau": [0.5, float("inf")]}],
    "backbones": ["tabular"],
    "tasks": [{"name": "tabular", "limit": 2}],
    "max_new_tokens": 4,
    "prove": False,
}
WORKER = """
import sys
from harness.run.executors import run_in_worker
from harness.run.options import Options
run_in_worker({suite!r}, ("tabular", "fp64"), sys.argv[1], Options())
"""


def test_a_fresh_process_runs_a_group_of_a_dumped_suite(tmp_path: Path, stride_env: dict[str, str]) -> None:
    resolved = suite.resolve(SUITE, Lines("small", None))
    plan = expand(resolved)
    store = Store.create(tmp_path / "run", plan.manifest())
    code = WORKER.format(suite=resolved.suite.model_dump()).replace("inf]", "float('inf')]")
    subprocess.run([sys.executable, "-c", code, str(store.path)], check=True, env=stride_env)
    assert sorted(store.cells()) == sorted(cell.id for cell in plan.cells)
    assert all(len(store.cell(name).samples) == 3 for name in store.cells())


def test_ray_without_its_extra_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = expand(suite.resolve(SUITE, Lines("small", None)))
    store = Store.create(tmp_path / "run", plan.manifest())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="stridebench\\[ray\\]"):
        executors.ray(plan, store, Options())
