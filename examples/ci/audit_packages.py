"""Looks up known vulnerabilities of locked packages: `python examples/ci/audit_packages.py .ci/lock.txt`.

Exit code 0: none, or no advisory service answered, which is said with its reason. 1: pip-audit lists some.
"""

from __future__ import annotations

import json
import subprocess
import sys

WORDS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")


def main(requirements: str, command: tuple[str, ...] = (sys.executable, "-m", "pip_audit")) -> int:
    """Run pip-audit; its answer is JSON, and an audit that could not be made gives none."""
    done = subprocess.run([*command, "-r", requirements, *WORDS], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or [f"pip-audit ended with exit code {done.returncode}"])[-1]
        print(f"skipped: no advisory service answered: {reason}")
        return 0
    listed = [(item["name"], fault["id"]) for item in packages for fault in item.get("vulns", ())]
    for name, identifier in listed:
        print(f"{name}: {identifier}")
    print(f"{len(packages)} packages, {len(listed)} known vulnerabilities")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
