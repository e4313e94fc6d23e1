"""Numbers in answers to GSM8K, by the three published rules. The rules disagree, so all are reported.

Sources: openai/grade-school-math, ``dataset.py`` (official); EleutherAI/lm-evaluation-harness, tasks gsm8k and
gsm8k_cot, version 3, filters ``strict-match`` and ``flexible-extract``.
"""

from __future__ import annotations

import re

HASHES = re.compile(r"#### (-?[0-9.,]+)")
SAID = re.compile(r"The answer is (-?[0-9.,]+).")
"""The strict rule of gsm8k_cot. Its last dot matches any character, as published."""
ANY = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))
"""lm-evaluation-harness removes these from answer and reference, in this order."""


def official(text: str) -> str | None:
    """Return the first number after "#### " without commas. A dot after it stays, so "18." is not "18"."""
    match = HASHES.search(text)
    return match[1].replace(",", "") if match else None


def strict(text: str, rule: re.Pattern[str] = HASHES) -> str | None:
    """Return the first number that the rule matches, without commas, dollars and a last dot."""
    match = rule.search(text)
    return plain(match[1]) if match else None


def flexible(text: str) -> str | None:
    """Return the last text that looks like a number, without commas, dollars and a last dot."""
    matches = ANY.findall(text)
    return plain(next(part for part in matches[-1] if part).strip()) if matches else None


def plain(text: str) -> str:
    """Normalise a number as lm-evaluation-harness does."""
    for ignored in IGNORED:
        text = ignored.sub("", text)
    return text.lower()
