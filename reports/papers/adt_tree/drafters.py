"""Fig. 1 of ADT-Tree from the cards of the trained drafters: how often their best token, or one of three, is right.

Each beside its controls of the same form, untrained and with shuffled weights. The paper's figure prints no values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from reports.papers.adt_tree.costs import columns
from reports.papers.drawing import COLOURS, legend, save
from reports.papers.measured import Measured
from reports.plot_style import STYLE
from reports.text_table import UNMEASURED, TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

FIGURE = re.compile(r"top([13])_(?:head)?1(_untrained|_shuffled)?")
"""Of the next token that a drafter is asked for, as recipes write it on cards."""
CONTROLS = {"": "trained", "_untrained": "untrained", "_shuffled": "shuffled weights"}


class Accuracy(NamedTuple):
    """Shares of held-out tokens, by control: of the best token, and of the best three."""

    drafter: str
    top1: dict[str, float]
    top3: dict[str, float]


def folder() -> Path:
    """Where the package keeps what it ships."""
    return Path(str(files("harness"))) / "backbones" / "weights"


def accuracies(cards: Path) -> list[Accuracy]:
    """Of every card below a folder that has such figures, in the order of their names."""
    found = []
    for path in sorted(cards.glob("*/card.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        one = Accuracy(str(card.get("name", path.parent.name)), {}, {})
        for key, value in (card.get("figures") or {}).items():
            if match := FIGURE.fullmatch(key):
                (one.top1 if match[1] == "1" else one.top3)[match[2] or ""] = float(value)
        if "" in one.top1:
            found.append(one)
    return found


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Fig. 1 as a table."""
    rows = [
        [one.drafter, *(_share(side, control) for control in CONTROLS for side in (one.top1, one.top3))]
        for one in accuracies(folder())
    ]
    heads = [f"top-{k}, {control}" for control in CONTROLS.values() for k in (1, 3)]
    notes = ["of held-out tokens where the backbone's likeliest is the drafter's first, or among its three; from cards"]
    title = "ADT-Tree, Fig. 1: accuracy of drafters on the next token"
    return [TextTable(title, columns("drafter", *heads), rows, notes)] if rows else []


def _share(side: dict[str, float], control: str) -> str:
    return f"{side[control]:.1%}" if control in side else UNMEASURED


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 1: bars of top-1 and top-3, solid and pale, a group a drafter, a colour a control."""
    found = accuracies(folder())
    if not found:
        return []
    with rc_context(STYLE):
        drawn = Figure(figsize=(2.4 + 1.5 * len(found), 3.9), dpi=130, layout="constrained")
        axes = drawn.add_subplot()
        for i, (control, title) in enumerate(CONTROLS.items()):
            at = [place + (i - 1) * 0.27 for place in range(len(found))]
            for side, alpha, k in (("top3", 0.35, 3), ("top1", 1.0, 1)):
                shares = [getattr(one, side).get(control, 0.0) for one in found]
                axes.bar(at, shares, 0.25, color=COLOURS[i], alpha=alpha, label=f"{title}, top-{k}")
        axes.set_xticks(range(len(found)), [one.drafter for one in found], fontsize=7)
        axes.set(ylabel="share of held-out tokens", ylim=(0, 1))
        drawn.suptitle("Fig. 1: accuracy of drafters on the next token", fontsize=9)
        legend(drawn, axes)
        return [save(drawn, outdir, "fig1")]
