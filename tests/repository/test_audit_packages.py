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
UNKNOWN: dict[str, Any] = {"name": "new", "skip_reason": "new is not on PyPI"}


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


@pytest.fixture
def lock(tmp_path: Path) -> str:
    path = tmp_path / "lock.txt"
    path.write_text("numpy==2.0")
    return str(path)


def test_known_vulnerabilities_fail(audit: Any, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.dumps({"dependencies": [SOUND, FAULTY]})
    assert audit(lock, says(answer, "Found 1 known vulnerability", 1)) == 1
    assert capsys.readouterr().out == "old: PYSEC-1\n2 packages audited, 0 skipped, 1 known vulnerabilities\n"


def test_sound_packages_pass(audit: Any, lock: str) -> None:
    assert audit(lock, says(json.dumps({"dependencies": [SOUND]}), "", 0)) == 0


def test_a_silent_service_is_a_skip_with_its_reason(audit: Any, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(lock, says("", "ERROR: connection refused", 1)) == 0
    assert capsys.readouterr().out == "skipped: no advisory service answered: ERROR: connection refused\n"


def test_packages_that_the_service_does_not_know_are_not_called_audited(
    audit: Any, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(lock, says(json.dumps({"dependencies": [SOUND, UNKNOWN]}), "", 0)) == 0
    assert (
        capsys.readouterr().out
        == "skipped: new is not on PyPI\n1 packages audited, 1 skipped, 0 known vulnerabilities\n"
    )
    assert audit(lock, says(json.dumps({"dependencies": [UNKNOWN, UNKNOWN]}), "", 0)) == 0
    expected = "skipped: no advisory service answered for any of 2 packages: new is not on PyPI\n"
    assert capsys.readouterr().out == expected


def test_what_is_no_silence_of_the_service_is_an_error(
    audit: Any, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit("missing.txt", says("", "", 1)) == 2
    assert audit(lock, says("", "No module named pip_audit", 1)) == 2
    assert audit(lock, says("", "requirement foo==1 does not contain a hash", 1)) == 2
    assert capsys.readouterr().out == ""


def test_the_workflow_calls_it_on_the_lock() -> None:
    workflow = yaml.safe_load((FOLDER / "audit-packages.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    assert "python examples/ci/audit_packages.py .ci/lock.txt" in commands
