"""Fig. 1 of ADT-Tree from the cards of the trained drafters: how often the best token, or one of three, is right.

Controls of the same architecture are untrained or have shuffled weights. The paper's figure prints no values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import COLOURS, legend
from stridebench.reports.papers.measured import Run, plain
from stridebench.reports.papers.registry import figure, sheet
from stridebench.reports.text_table import UNMEASURED, TextTable

FIGURE = re.compile(r"top([13])_(?:head)?1(_untrained|_shuffled)?")
"""Keys of next-token accuracy on the cards."""
CONTROLS = {"": "trained", "_untrained": "untrained", "_shuffled": "shuffled weights"}


class Accuracy(NamedTuple):
    """Shares of held-out tokens where the best token, or one of the best three, is right; by control."""

    drafter: str
    top1: dict[str, float]
    top3: dict[str, float]


def folder() -> Path:
    """Return the folder of the shipped weights."""
    return Path(str(files("stridebench.harness"))) / "backbones" / "weights"


def accuracies(cards: Path) -> list[Accuracy]:
    """Read the accuracies of all cards below a folder, in the order of their names."""
    drafters = []
    for path in sorted(cards.glob("*/card.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        drafter = Accuracy(str(card.get("name", path.parent.name)), {}, {})
        for key, value in (card.get("figures") or {}).items():
            if match := FIGURE.fullmatch(key):
                (drafter.top1 if match[1] == "1" else drafter.top3)[match[2] or ""] = float(value)
        if "" in drafter.top1:
            drafters.append(drafter)
    return drafters


@sheet("adt_tree_fig1")
def table(run: Run) -> list[TextTable]:
    """Return Fig. 1 as a table."""
    lines = []
    for drafter in accuracies(folder()):
        line = {"drafter": drafter.drafter}
        for control, title in CONTROLS.items():
            line[f"top-1, {title}"] = _share(drafter.top1, control)
            line[f"top-3, {title}"] = _share(drafter.top3, control)
        lines.append(line)
    notes = ["of held-out tokens where the backbone's likeliest is the drafter's first, or among its three; from cards"]
    return plain("ADT-Tree, Fig. 1: accuracy of drafters on the next token", lines, notes)


def _share(side: dict[str, float], control: str) -> str:
    return f"{side[control]:.1%}" if control in side else UNMEASURED


@figure("adt_tree_fig1")
def draw(run: Run) -> Iterator[Figure]:
    """Draw Fig. 1: bars of top-1 (solid) and top-3 (pale), one group a drafter, one colour a control."""
    drafters = accuracies(folder())
    if not drafters:
        return
    drawn = Figure(figsize=(2.4 + 1.5 * len(drafters), 3.9), dpi=130, layout="constrained")
    drawn.suptitle("Fig. 1: accuracy of drafters on the next token", fontsize=9)
    axes = drawn.add_subplot()
    for i, (control, title) in enumerate(CONTROLS.items()):
        places = [place + (i - 1) * 0.27 for place in range(len(drafters))]
        for side, alpha, k in (("top3", 0.35, 3), ("top1", 1.0, 1)):
            shares = [getattr(drafter, side).get(control, 0.0) for drafter in drafters]
            axes.bar(places, shares, 0.25, color=COLOURS[i], alpha=alpha, label=f"{title}, top-{k}")
    axes.set_xticks(range(len(drafters)), [drafter.drafter for drafter in drafters], fontsize=7)
    axes.set(ylabel="share of held-out tokens", ylim=(0, 1))
    legend(drawn, axes)
    yield drawn
