"""Texts and data on their way into a page.

Whatever a model or a file wrote passes through `stridebench.harness.errors.printable`. The templates escape it, and the
scripts of the page set it as text. JSON inside a page never holds ``<``, so that no text of it can end its element.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stridebench.harness.errors import StoreError, UsageError, printable, printable_line
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
    """The output of a template: texts with escapes for characters that cannot be shown."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def excerpt(text: str) -> str:
    """The beginning of a text in one line; runs of white space become one space."""
    begin = text[: 2 * EXCERPT]
    words = " ".join(begin.split())
    return printable_line(words[:EXCERPT]) + ("…" if len(words) > EXCERPT or len(text) > len(begin) else "")


def for_plotly(text: str) -> str:
    """A text for a figure: plotly reads a few tags and entities in it."""
    return escape(printable_line(text))


def text_of(row: pd.Series[Any] | Mapping[str, object], column: str) -> str:
    """A text column; "" if the row lacks it."""
    value = row.get(column)
    return value if isinstance(value, str) else ""


def signed(text: str) -> str:
    """A number with a typographic minus."""
    return text.replace("-", MINUS) if text != "-" else DASH


def figure_of(value: Any, digits: int = 2) -> str:
    """Return a number with fixed decimals, or a dash if there is none."""
    return signed(number(value, digits))


def e_value(log_e: float) -> str:
    """Return an e-value from its natural logarithm: a number if it is short, else a power of ten."""
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


# The scripts and styles of a page: our own, plotly's and DataTables', each copied from its Python package.


STATIC = Path(__file__).parent / "static"
OWN = (
    "page.css",
    "theme.js",
    "summary_table.js",
    "figures.js",
    "ribbon.js",
    "media.js",
    "samples.js",
    "runs.js",
    "follow.js",
)
_EXPORT = re.compile(r"\bexport\s*\{([^{}]*)\};?")


def check_folder(folder: Path) -> None:
    """Refuse a folder whose index.html somebody else wrote.

    Raises:
        UsageError: it would be lost.
    """
    page = folder / "index.html"
    if page.exists() and b"assets/page.css" not in page.read_bytes():
        raise UsageError(f"{page} is not a page of stridebench and would be overwritten; name another folder")


def write(folder: Path) -> None:
    """Write the files into ``folder``.

    Raises:
        StoreError: the installed itables has another kind of bundle.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        (folder / name).write_bytes((STATIC / name).read_bytes())
    (folder / "plotly.min.js").write_bytes((files("plotly") / "package_data" / "plotly.min.js").read_bytes())
    bundle = files("itables") / "html"
    (folder / "datatables.css").write_bytes((bundle / "dt_bundle.css").read_bytes())
    script = classic_script((bundle / "dt_bundle.js").read_text(encoding="utf-8"), "DataTable")
    (folder / "datatables.js").write_text(script, encoding="utf-8")


def classic_script(module: str, name: str) -> str:
    """A bundled module as a classic script that sets ``window.NAME`` to its default export.

    A browser loads no module from a page on the disk.

    Raises:
        StoreError: the module lacks a single export with a default.
    """
    exports = list(_EXPORT.finditer(module))
    default = re.search(r"([\w$]+)\s+as\s+default\b", exports[0][1]) if len(exports) == 1 else None
    if default is None:
        raise StoreError(
            "the table script of the installed package itables is not one module with a default export. "
            "Install the version that the constraints file names."
        )
    before, after = module[: exports[0].start()], module[exports[0].end() :]
    return f'(() => {{\n"use strict";\n{before}\nwindow.{name} = {default[1]};\n{after}\n}})();\n'


# Templates.


TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def environment() -> Environment:
    """The templates; whatever they write is printable and escaped."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["json"] = lambda value: Markup(safe_json(value))  # it has no character that HTML reads
    return templates
