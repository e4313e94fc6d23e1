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


def listed(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages})


NEW = "skipped: new is not on PyPI"
SILENT, KNOWN = "skipped: no advisory service answered", "known vulnerabilities\n"


@pytest.mark.parametrize(
    ("answer", "code", "out"),
    [
        (says(listed(SOUND, FAULTY), "", 1), 1, f"old: PYSEC-1\n2 packages audited, 0 skipped, 1 {KNOWN}"),
        (says(listed(SOUND), "", 0), 0, f"1 packages audited, 0 skipped, 0 {KNOWN}"),
        (says(listed(SOUND, UNKNOWN), "", 0), 0, f"{NEW}\n1 packages audited, 1 skipped, 0 {KNOWN}"),
        (says(listed(UNKNOWN, UNKNOWN), "", 0), 0, f"{SILENT} for any of 2 packages: new is not on PyPI\n"),
        (says("", "ERROR: connection refused", 1), 0, f"{SILENT}: ERROR: connection refused\n"),
        (says("", "No module named pip_audit", 1), 2, ""),
        (says("", "requirement foo==1 does not contain a hash", 1), 2, ""),
    ],
)
def test_vulnerabilities_fail_and_the_silence_of_the_service_is_said(
    audit: Any, lock: str, capsys: pytest.CaptureFixture[str], answer: tuple[str, ...], code: int, out: str
) -> None:
    assert audit(lock, answer) == code
    assert capsys.readouterr().out == out


def test_a_missing_lock_is_an_error(audit: Any) -> None:
    assert audit("missing.txt", says("", "", 1)) == 2


def test_the_workflow_calls_it_on_the_lock() -> None:
    workflow = yaml.safe_load((FOLDER / "audit-packages.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    assert "python examples/ci/audit_packages.py .ci/lock.txt" in commands
