"""Texts and data on their way into a page.

Whatever a model or a file wrote passes through `stridebench.harness.errors.printable`. The templates escape it, and the
scripts of the page set it as text. JSON inside a page has no ``<``, so that no text of it can end its element.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from html import escape
from typing import Any

import pandas as pd
from markupsafe import Markup

from stridebench.harness.errors import printable, printable_line
from stridebench.reports.text_table import number

EXCERPT = 160
"""Characters of a text in a table."""
CONTROLS = (r"\u00", r"\b", r"\f", r"\r")
"""How JSON writes control characters other than new lines and tabs."""
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"


def safe_json(value: Any) -> str:
    """JSON that is a script's expression and may stand inside any element; NaN and infinities become null."""
    try:
        text = _dump(value)
        doubtful = not text.isprintable() or any(escape in text for escape in CONTROLS)
    except ValueError:  # a number that JSON lacks
        doubtful = True
    if doubtful:
        text = _dump(plain(value))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """The value with printable texts, and with None for every number that JSON lacks."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def printed(value: Any) -> Any:
    """What a template writes: texts with escapes for what cannot be shown."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def excerpt(text: str) -> str:
    """The beginning of a text in one line; runs of white space become one space."""
    begin = text[: 2 * EXCERPT]
    words = " ".join(begin.split())
    return printable_line(words[:EXCERPT]) + ("…" if len(words) > EXCERPT or len(text) > len(begin) else "")


def for_plotly(text: str) -> str:
    """A text for a figure: plotly reads a few tags and entities in it."""
    return escape(printable_line(text))


def text_of(row: pd.Series[Any] | dict[str, Any], column: str) -> str:
    """A text column; "" if the row lacks it."""
    value = row.get(column)
    return value if isinstance(value, str) else ""


def signed(text: str) -> str:
    """A number with a typographic minus."""
    return text.replace("-", MINUS) if text != "-" else DASH


def figure_of(value: Any, digits: int = 2) -> str:
    """A number with fixed decimals; a dash where there is none."""
    return signed(number(value, digits))


def e_value(log_e: float) -> str:
    """An e-value from its natural logarithm: a number where it is short, else a power of ten."""
    tens = log_e / math.log(10)
    return signed(f"{math.exp(log_e):.2g}" if abs(tens) < 4 else f"1e{tens:+.0f}")


def visible(variation: Any) -> str:
    """The bias, in total variation a token, that an audit would have seen."""
    return (
        "some kinds of bias would not be seen"
        if variation is None or variation != variation
        else figure_of(variation, 3)
    )


def plain_list(values: Iterable[Any], digits: int | None = None) -> list[Any]:
    """Numbers as JSON values, rounded; None for those that are missing."""
    out = [None if value is None or value != value else float(value) for value in values]
    return out if digits is None else [None if value is None else round(value, digits) for value in out]
