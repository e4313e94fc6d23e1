"""The scripts and styles of a page: our own, plotly's and DataTables', each copied from its Python package."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from stridebench.harness.errors import StoreError, UsageError

STATIC = Path(__file__).parent / "static"
OWN = ("page.css", "theme.js", "cells.js", "figures.js", "ribbon.js", "media.js", "samples.js", "runs.js", "follow.js")
_EXPORT = re.compile(r"\bexport\s*\{([^{}]*)\};?")


def check_folder(folder: Path) -> None:
    """Refuse a folder whose index.html somebody else wrote.

    Raises:
        UsageError: it would be lost.
    """
    page = folder / "index.html"
    if page.exists() and b"assets/page.css" not in page.read_bytes():
        raise UsageError(f"{page} is no page of stridebench and would be overwritten; name another folder")


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
        StoreError: the module has no single export with a default.
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
