"""What a person looks at: a contact sheet of pictures, rendered meshes, and transcripts side by side.

One sheet for each backbone, type, temperature and task: a row a prompt, a column a method. Pictures and prompts are
matched by the file that each sample names, never by order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib.image
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from reports.meshes import draw
from reports.plot_style import STYLE
from reports.text_table import markdown_lines

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

ROWS, COLUMNS = 8, 10
"""Prompts and methods on one sheet at most; what is left out is said on it."""


@dataclass(frozen=True)
class Group:
    """Cells of one backbone, type, temperature and task, and the prompts that they share."""

    title: str
    cells: tuple[Cell, ...]
    prompts: tuple[str, ...]

    @property
    def slug(self) -> str:
        """As a file's name."""
        return re.sub(r"[^\w.=-]+", "-", self.title).strip("-")

    def sample(self, cell: Cell, prompt: str) -> pd.Series[Any] | None:
        """The first repetition of a prompt in a cell."""
        return sample(cell, prompt)


def sample(cell: Cell, prompt: str, repetition: int | None = None) -> pd.Series[Any] | None:
    """A counted repetition of a prompt in a cell; without a number, the first."""
    found = cell.samples[(cell.samples["prompt"] == prompt) & ~cell.samples["warmup"].astype(bool)]
    found = found if repetition is None else found[found["repetition"] == repetition]
    return None if found.empty else found.sort_values("repetition").iloc[0]


def write(store: Store, outdir: Path) -> list[Path]:
    """Write a sheet for each group whose outputs are pictures or meshes, a page of transcripts for speech.

    Returns:
        The paths written; empty where all outputs are texts of language models.
    """
    written = []
    for group in _groups(store):
        kinds = {Path(str(name)).suffix for cell in group.cells for name in cell.samples["output"].dropna() if name}
        outdir.mkdir(parents=True, exist_ok=True)
        if kinds:
            path = outdir / f"outputs-{group.slug}.png"
            _sheet(store, group, path)
            written.append(path)
        elif any(cell.meta.get("modality") == "speech" for cell in group.cells):
            path = outdir / f"transcripts-{group.slug}.md"
            path.write_text(_transcripts(group), encoding="utf-8")
            written.append(path)
    return written


def _groups(store: Store) -> Iterator[Group]:
    cells = [store.cell(name) for name in store.cells()]
    cells = [c for c in cells if c.meta["status"] == "done" and c.meta.get("role") != "floor" and "output" in c.samples]
    named: dict[str, list[Cell]] = {}
    for cell in cells:
        sampling = cell.meta.get("sampling") or {}
        top_k = f" top-k={sampling['top_k']}" if sampling.get("top_k") else ""
        heat = f"T={sampling.get('temperature', 0.0):g}{top_k}"
        title = f"{cell.meta['backbone']} {cell.meta['dtype']} {heat} {cell.meta['task']}"
        named.setdefault(title, []).append(cell)
    for title, found in named.items():
        counted = found[0].samples[~found[0].samples["warmup"].astype(bool)]
        yield Group(title, tuple(found), tuple(dict.fromkeys(counted["prompt"])))


def spread(prompts: Sequence[str], most: int) -> tuple[str, ...]:
    """At most so many, evenly apart: prompts of one family lie side by side, and all families are to be seen."""
    count = min(most, len(prompts))
    return tuple(prompts[i * len(prompts) // count] for i in range(count))


def _sheet(store: Store, group: Group, path: Path) -> None:
    prompts, cells = spread(group.prompts, ROWS), group.cells[:COLUMNS]
    left = [
        f"{len(all_) - len(shown)} more {what}"
        for all_, shown, what in ((group.prompts, prompts, "prompts"), (group.cells, cells, "methods"))
        if len(all_) > len(shown)
    ]
    with rc_context(STYLE):
        figure = Figure(figsize=(1.5 * len(cells) + 1.6, 1.5 * len(prompts) + 0.9), dpi=130, layout="constrained")
        figure.suptitle("; ".join([group.title, *left]), fontsize=9)
        for row, prompt in enumerate(prompts):
            for column, cell in enumerate(cells):
                place = row * len(cells) + column + 1
                axes = tile(store, figure, (len(prompts), len(cells), place), group.sample(cell, prompt))
                if row == 0:
                    axes.set_title(fill(str(cell.meta["label"]), 20), fontsize=7)
                if column == 0:
                    name_row(axes, prompt)
        figure.savefig(path, metadata={"Software": None})


def name_row(axes: Any, name: str) -> None:
    """A name beside the first picture of its row; a 3-D axes shows no axis label, so it is written as text."""
    write = axes.text2D if hasattr(axes, "text2D") else axes.text
    write(-0.08, 0.5, fill(name, 18), transform=axes.transAxes, fontsize=6, ha="right", va="center")


def tile(store: Store, figure: Figure, place: tuple[int, int, int], sample: pd.Series[Any] | None) -> Any:
    """The axes of one place (rows, columns, number from 1) with a sample's picture or mesh, or why it has none."""
    name = "" if sample is None or not isinstance(sample["output"], str) else sample["output"]
    if name.endswith(".ply"):
        axes = figure.add_subplot(*place, projection="3d")
        draw(axes, store.path / name)
        return axes
    axes = figure.add_subplot(*place)
    axes.set_xticks([])
    axes.set_yticks([])
    if name.endswith(".png"):
        axes.imshow(matplotlib.image.imread(store.path / name), interpolation="nearest")
    else:
        reason = "no sample" if sample is None else str(sample["error"] or "no output")
        axes.text(0.5, 0.5, fill(reason[:90], 16), fontsize=5, ha="center", va="center", transform=axes.transAxes)
    return axes


def _transcripts(group: Group) -> str:
    titles = ["prompt", *(str(cell.meta["label"]) for cell in group.cells)]
    return "\n".join([f"# {group.title}", "", *markdown_lines(titles, list(_lines(group))), ""])


def _lines(group: Group) -> Iterator[Sequence[str]]:
    for prompt in group.prompts:
        samples = [group.sample(cell, prompt) for cell in group.cells]
        yield [prompt, *("-" if s is None else str(s["text"] if s["status"] == "ok" else s["error"]) for s in samples)]
