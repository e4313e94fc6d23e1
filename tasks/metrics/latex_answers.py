"""Answers to MATH problems: out of the box, and made alike by the two published sets of rules.

Sources: Hendrycks et al. 2021, arXiv:2103.03874, ``modeling/math_equivalence.py`` of hendrycks/math (`hendrycks`);
Lewkowycz et al. 2022 (Minerva), arXiv:2206.14858, appendix D (`minerva`). Neither compares values: 0.25 is not 1/4.
"""

from __future__ import annotations

import re

BOX = "\\boxed"
FINAL = re.compile(r"Final Answer: The final answer is(.*?)\. I hope it is correct\.", re.DOTALL)

UNITS = "\\text{ "
"""What stands behind it is a unit, and dropped."""
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
    """A text that Hendrycks' rules stumble over; it is then compared as it stands."""


def boxed(text: str) -> str | None:
    """What the last ``\\boxed`` holds, up to the brace that closes it; None where there is none or it stays open.

    ``\\boxed 5$`` holds what stands before the dollar.
    """
    at = text.rfind(BOX)
    if at < 0:
        return None
    rest = text[at + len(BOX) :]
    if rest.startswith(" "):
        return rest[1:].split("$")[0]
    depth = 0
    for place, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth < 1:
            return rest[1:place] if place else None
    return None


def final(text: str) -> str | None:
    """What Minerva's closing sentence names, else what the last box holds.

    An output that is cut before "I hope it is correct." counts as if it had ended there, as published.
    """
    found = FINAL.search(text) or FINAL.search(text + ". I hope it is correct.")
    return found[1].strip() if found else boxed(text)


def equal(one: str, other: str) -> bool:
    """Whether two answers are one by Hendrycks' rules."""
    try:
        return hendrycks(one) == hendrycks(other)
    except Unfit:
        return one == other


def hendrycks(text: str) -> str:
    """An answer as Hendrycks et al. compare it.

    Raises:
        Unfit: two units, or a fraction or root without an argument.
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
    whole = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{whole[1]}}}{{{whole[2]}}}" if whole else text


def _roots(text: str) -> str:
    """Braces around the first letter behind each root."""
    head, *parts = text.split("\\sqrt")
    if not all(parts):
        raise Unfit(f"a root of nothing in {text!r}")
    return head + "".join(f"\\sqrt{part}" if part[0] == "{" else f"\\sqrt{{{part[0]}}}{part[1:]}" for part in parts)


def _fractions(text: str) -> str:
    """Braces around the two letters behind each fraction; a fraction of one letter leaves the text as it is."""
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
    """An answer as Minerva compares it, short of the test by a computer algebra system that others add."""
    text = text.split("=")[-1]
    for before, after in REPLACED:
        text = text.replace(before, after)
    for part in REMOVED:
        text = text.replace(part, "")
    for pattern, kept in UNWRAPPED:
        text = pattern.sub(kept, text)
    text = text.replace("$", "")
    return text.replace(",", "") if text.replace(",", "").isdigit() else text
