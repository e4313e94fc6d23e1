"""Looks up known vulnerabilities of locked packages: `python examples/ci/audit_packages.py .ci/lock.txt`.

Exit code 0: none, or no advisory service answered, which is said with its reason. 1: pip-audit lists some. 2: no file
of that name, or pip-audit did not look anything up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WORDS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")
SILENT = ("connect", "connection", "timed out", "timeout", "HTTP", "ServiceError", "resolve")
"""Words in pip-audit's last line of an error where a service did not answer."""


def main(requirements: str, command: tuple[str, ...] = (sys.executable, "-m", "pip_audit")) -> int:
    """Run pip-audit; its answer is JSON, and an audit that could not be made gives none."""
    if not Path(requirements).is_file():
        print(f"{requirements} is no file; name a lock file with hashes", file=sys.stderr)
        return 2
    done = subprocess.run([*command, "-r", requirements, *WORDS], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or [f"pip-audit ended with exit code {done.returncode}"])[-1]
        if any(word in reason for word in SILENT):
            print(f"skipped: no advisory service answered: {reason}")
            return 0
        print(f"pip-audit looked nothing up: {reason}", file=sys.stderr)
        return 2
    return report(packages)


def report(packages: list[dict[str, Any]]) -> int:
    """Print what the service knows; a package that it does not know was not audited."""
    unknown = [str(item["skip_reason"]) for item in packages if "skip_reason" in item]
    if unknown and len(unknown) == len(packages):
        print(f"skipped: no advisory service answered for any of {len(packages)} packages: {unknown[0]}")
        return 0
    for reason in unknown:
        print(f"skipped: {reason}")
    listed = [(item["name"], fault["id"]) for item in packages for fault in item.get("vulns", ())]
    for name, identifier in listed:
        print(f"{name}: {identifier}")
    print(
        f"{len(packages) - len(unknown)} packages audited, {len(unknown)} skipped, {len(listed)} known vulnerabilities"
    )
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
