"""How long the pages of a large run take to open in Chromium, from the disk."""

from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 3


def missing() -> str | None:
    """What keeps pages from being opened here; None where a browser and its driver are installed."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install '.[browser]'"
    return None if _chromium() else "no Chromium: apt-get install chromium, or $STRIDE_CHROMIUM"


def seconds(pages: Path) -> dict[str, float]:
    """The median seconds until the index, a cell and its first output are drawn.

    A page counts from its navigation to its table, which the last script makes; an output from the click to its tokens.
    Each round is a browser of its own, whose caches are empty.
    """
    from playwright.sync_api import sync_playwright

    rounds = []
    with sync_playwright() as driver:
        for _ in range(ROUNDS):
            chromium = driver.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
            rounds.append(_round(chromium.new_page(), pages))
            chromium.close()
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def _round(tab: Any, pages: Path) -> dict[str, float]:
    spent = {"index": _opened(tab, pages / "index.html"), "cell": _opened(tab, min((pages / "cells").glob("*.html")))}
    begin = time.perf_counter()
    tab.click("#sample-table tbody a >> nth=0")
    tab.wait_for_selector("#ribbon .token")
    return {**spent, "output": time.perf_counter() - begin}


def _opened(tab: Any, file: Path) -> float:
    tab.goto("about:blank")
    begin = time.perf_counter()
    tab.goto(file.as_uri())
    tab.wait_for_selector(".dt-container")
    return time.perf_counter() - begin


def _chromium() -> str | None:
    return os.environ.get("STRIDE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
