"""The audit of packages under examples/ci: what pip-audit lists fails, and silence of the service is said."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "ci"
SOUND: dict[str, Any] = {"name": "numpy", "version": "2.0", "vulns": []}
FAULTY: dict[str, Any] = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1"}]}


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit_packages", FOLDER / "audit_packages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def says(out: str, err: str, code: int) -> tuple[str, ...]:
    """A command that answers as pip-audit does."""
    return sys.executable, "-c", f"import sys; print({out!r}); print({err!r}, file=sys.stderr); sys.exit({code})"


def test_known_vulnerabilities_fail(audit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.dumps({"dependencies": [SOUND, FAULTY]})
    assert audit("lock.txt", says(answer, "Found 1 known vulnerability", 1)) == 1
    assert capsys.readouterr().out == "old: PYSEC-1\n2 packages, 1 known vulnerabilities\n"


def test_sound_packages_pass(audit: Any) -> None:
    assert audit("lock.txt", says(json.dumps({"dependencies": [SOUND]}), "", 0)) == 0


def test_a_silent_service_is_a_skip_with_its_reason(audit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("lock.txt", says("", "ERROR: connection refused", 1)) == 0
    assert capsys.readouterr().out == "skipped: no advisory service answered: ERROR: connection refused\n"


def test_the_workflow_calls_it_on_the_lock() -> None:
    workflow = yaml.safe_load((FOLDER / "audit-packages.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    assert "python examples/ci/audit_packages.py .ci/lock.txt" in commands
