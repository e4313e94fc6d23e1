"""Answers to MATH problems: extracted from the box and normalised by the two published sets of rules.

Sources: Hendrycks et al. 2021, arXiv:2103.03874, ``modeling/math_equivalence.py`` of hendrycks/math (`hendrycks`);
Lewkowycz et al. 2022 (Minerva), arXiv:2206.14858, appendix D (`minerva`). Neither compares values: 0.25 is not 1/4.
"""

from __future__ import annotations

import re

BOX = "\\boxed"
FINAL = re.compile(r"Final Answer: The final answer is(.*?)\. I hope it is correct\.", re.DOTALL)

UNITS = "\\text{ "
"""The text after it is a unit and is dropped."""
DROPPED = ("\n", "\\!")
SPELT = (("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"))
BARE = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")

REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
WORDS = (
    "square ways integers dollars mph inches ft hours km units \\ldots sue points feet minutes digits cents degrees cm "
    "gm pounds meters meals edges students childrentickets multiples \\text{s} \\text{.}"
)
REMOVED = (
    *WORDS.split(),
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    '"',
    "\\dots",
)
UNWRAPPED = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),
)


class Unfit(ValueError):
    """A text that Hendrycks' rules cannot normalise; it is compared as it is."""


def boxed(text: str) -> str | None:
    """Return the content of the last ``\\boxed``; None where there is none or its brace stays open.

    ``\\boxed 5$`` contains the text before the dollar.
    """
    start = text.rfind(BOX)
    if start < 0:
        return None
    after = text[start + len(BOX) :]
    if after.startswith(" "):
        return after[1:].split("$")[0]
    depth = 0
    for end, character in enumerate(after):
        depth += (character == "{") - (character == "}")
        if depth < 1:
            return after[1:end] if end else None
    return None


def final(text: str) -> str | None:
    """Return the answer of Minerva's last sentence, else of the last box.

    An output that is cut before "I hope it is correct." counts as if it had that end, as published.
    """
    match = FINAL.search(text) or FINAL.search(text + ". I hope it is correct.")
    return match[1].strip() if match else boxed(text)


def equal(one: str, other: str) -> bool:
    """Return whether two answers are equal by Hendrycks' rules."""
    try:
        return hendrycks(one) == hendrycks(other)
    except Unfit:
        return one == other


def hendrycks(text: str) -> str:
    """Normalise an answer as Hendrycks et al. do.

    Raises:
        Unfit: the text has two units, or a fraction or root without an argument.
    """
    for part in DROPPED:
        text = text.replace(part, "")
    for spelling, usual in SPELT:
        text = text.replace(spelling, usual)
    for part in BARE:
        text = text.replace(part, "")
    if text.count(UNITS) > 1:
        raise Unfit(f"two units in {text!r}")
    text = text.split(UNITS)[0].replace("\\%", "").replace("%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    text = sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text
    text = _fractions(_roots(text).replace(" ", ""))
    if text == "0.5":
        return "\\frac{1}{2}"
    fraction = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{fraction[1]}}}{{{fraction[2]}}}" if fraction else text


def _roots(text: str) -> str:
    """Put braces around the first character after each root."""
    head, *parts = text.split("\\sqrt")
    if not all(parts):
        raise Unfit(f"a root of nothing in {text!r}")
    return head + "".join(f"\\sqrt{part}" if part[0] == "{" else f"\\sqrt{{{part[0]}}}{part[1:]}" for part in parts)


def _fractions(text: str) -> str:
    """Put braces around the two characters after each fraction; with one character only, the text stays as it is."""
    head, *parts = text.split("\\frac")
    if not all(parts):
        raise Unfit(f"a fraction of nothing in {text!r}")
    if any(len(part) < 2 and part[0] != "{" for part in parts):
        return text
    return head + "".join(f"\\frac{_fraction(part)}" for part in parts)


def _fraction(part: str) -> str:
    if part[0] == "{":
        return part
    below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
    return f"{{{part[0]}}}{below}"


def minerva(text: str) -> str:
    """Normalise an answer as Minerva does, without the computer algebra system that others add."""
    text = text.split("=")[-1]
    for before, after in REPLACED:
        text = text.replace(before, after)
    for part in REMOVED:
        text = text.replace(part, "")
    for pattern, replacement in UNWRAPPED:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    return text.replace(",", "") if text.replace(",", "").isdigit() else text
