"""The fixed cases are what they were: every total variation that is printed was measured on them.

``RENEW_FORMATS=1 pytest tests/harness/proof/test_cases.py`` writes ``fixed_cases.txt`` anew; read the difference.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stridebench.harness.proof import cases, distance
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import Effort
from stridebench.harness.registry import METHODS

FILE = Path(__file__).with_name("fixed_cases.txt")


def described(case: Case) -> str:
    """Every field of a case, and how many outputs it has."""
    fields = asdict(case)
    fields |= fields.pop("sampling") | {"outputs": case.outputs}
    return " ".join(f"{key}={str(value).replace(' ', '') or '-'}" for key, value in fields.items())


def lines_of(name: str, value: Any) -> Iterator[str]:
    """A constant on one line, or each of its cases on a line."""
    if isinstance(value, tuple) and all(isinstance(case, Case) for case in value):
        for number, case in enumerate(value):
            yield f"{name}[{number}] {described(case)}"
    else:
        yield f"{name} {described(value) if isinstance(value, Case) else value}"


def fixed() -> str:
    """The constants of the cases, and the efforts with which they are enumerated."""
    constants = {name: value for name, value in vars(cases).items() if name.isupper()} | {"MANY": distance.MANY}
    lines = [line for name, value in constants.items() for line in lines_of(name, value)]
    for name, effort in vars(distance).items():
        if isinstance(effort, Effort):
            proofs = [draws.limits for draws in effort.draws(METHODS.get("lookahead")())]
            lines.append(f"{name} {proofs}")
    return "\n".join(lines) + "\n"


def test_no_digit_of_a_fixed_case_changes_unseen() -> None:
    text = fixed()
    if "RENEW_FORMATS" in os.environ:
        FILE.write_text(text, encoding="utf-8")
    before, after = FILE.read_text(encoding="utf-8").splitlines(), text.splitlines()
    changed = "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm="", n=0))
    assert before == after, (
        f"the fixed cases changed, and every total variation of docs and reports was measured on them:\n{changed}\n"
        f"If that is meant, measure those again and run: RENEW_FORMATS=1 pytest tests/harness/proof/test_cases.py"
    )
