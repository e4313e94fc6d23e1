"""A page as a browser without scripts reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


@dataclass
class Parsed(HTMLParser):
    """Elements with their attributes, the texts of JSON elements, and the text of the page."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    text: str = ""
    inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def parsed(file: Path) -> Parsed:
    out = Parsed()
    out.feed(file.read_text(encoding="utf-8"))
    return out


def samples_in(file: Path) -> dict[str, Any]:
    """Return the data of samples or requests that the page of a cell embeds."""
    blocks = [json.loads(text) for text in parsed(file).scripts if text]
    data: dict[str, Any] = next(block for block in blocks if "documents" in block)
    return data
