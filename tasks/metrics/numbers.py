"""Numbers out of worked answers to GSM8K, by the three published rules; they disagree, so all are reported.

Sources: openai/grade-school-math, ``dataset.py`` (official); EleutherAI/lm-evaluation-harness, tasks gsm8k and
gsm8k_cot, version 3, filters ``strict-match`` and ``flexible-extract``.
"""

from __future__ import annotations

import re

HASHES = re.compile(r"#### (-?[0-9.,]+)")
SAID = re.compile(r"The answer is (-?[0-9.,]+).")
"""The strict rule of gsm8k_cot; its last dot stands for any character, as published."""
ANY = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))
"""Taken out of answer and reference before lm-evaluation-harness compares them, in this order."""


def official(text: str) -> str | None:
    """The first number behind "#### ", without commas; a dot behind it stays, so "18." is not "18"."""
    found = HASHES.search(text)
    return found[1].replace(",", "") if found else None


def strict(text: str, rule: re.Pattern[str] = HASHES) -> str | None:
    """The first number that the rule finds, without commas, dollars and a last dot."""
    found = rule.search(text)
    return plain(found[1]) if found else None


def flexible(text: str) -> str | None:
    """The last thing that looks like a number, without commas, dollars and a last dot."""
    found = ANY.findall(text)
    return plain(next(part for part in found[-1] if part).strip()) if found else None


def plain(text: str) -> str:
    """As lm-evaluation-harness compares it."""
    for ignored in IGNORED:
        text = ignored.sub("", text)
    return text.lower()
