"""Outputs for a person to look at: contact sheets of pictures and rendered meshes, and transcripts side by side.

There is one sheet for each backbone, dtype, temperature and task, with one row a prompt and one column a method.
Pictures and prompts are matched by the file that each sample names, never by order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.image
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.meshes import draw
from stridebench.reports.pareto import STYLE
from stridebench.reports.text_table import markdown_lines

ROWS, COLUMNS = 8, 10
"""Prompts and methods on one sheet at most; the sheet says how many were left out."""
CAPTION = 80
"""Characters of a prompt that labels its pictures."""


@dataclass(frozen=True)
class Group:
    """Cells of one backbone, dtype, temperature and task, and the prompts that they share."""

    title: str
    cells: tuple[SealedCell, ...]
    prompts: tuple[str, ...]

    @property
    def slug(self) -> str:
        """The title as a file name."""
        return re.sub(r"[^\w.=-]+", "-", self.title).strip("-")

    def sample(self, cell: SealedCell, prompt: str) -> pd.Series[Any] | None:
        """Return the first repetition of a prompt in a cell."""
        return sample(cell, prompt)


def sample(cell: SealedCell, prompt: str, repetition: int | None = None) -> pd.Series[Any] | None:
    """Return a counted repetition of a prompt in a cell; the first one if no number is given."""
    samples = cell.samples[(cell.samples["prompt"] == prompt) & ~cell.samples["warmup"].astype(bool)]
    if repetition is not None:
        samples = samples[samples["repetition"] == repetition]
    return None if samples.empty else samples.sort_values("repetition").iloc[0]


def write(store: Store, outdir: Path) -> list[Path]:
    """Write a sheet for each group whose outputs are pictures or meshes, and a page of transcripts for speech.

    Returns:
        The paths written; none where all outputs are texts of language models.
    """
    written = []
    for group in _groups(store):
        kinds = {Path(str(name)).suffix for cell in group.cells for name in cell.samples["output"].dropna() if name}
        outdir.mkdir(parents=True, exist_ok=True)
        if kinds:
            path = outdir / f"outputs-{group.slug}.png"
            _sheet(store, group, path)
            written.append(path)
        elif any(cell.meta.modality == "speech" for cell in group.cells):
            path = outdir / f"transcripts-{group.slug}.md"
            titles = ["prompt", *(cell.meta.label for cell in group.cells)]
            lines = [f"# {group.title}", "", *markdown_lines(titles, list(_lines(group))), ""]
            path.write_text("\n".join(lines), encoding="utf-8")
            written.append(path)
    return written


def _groups(store: Store) -> Iterator[Group]:
    cells = [store.cell(name) for name in store.cells()]
    cells = [c for c in cells if c.meta.status == "done" and c.meta.role != "floor" and "output" in c.samples]
    groups: dict[str, list[SealedCell]] = {}
    for cell in cells:
        sampling = cell.meta.sampling.words.replace(" = ", "=").replace(",", "")
        title = f"{cell.meta.backbone} {cell.meta.dtype} {sampling} {cell.meta.task}"
        groups.setdefault(title, []).append(cell)
    for title, group in groups.items():
        counted = group[0].samples[~group[0].samples["warmup"].astype(bool)]
        yield Group(title, tuple(group), tuple(dict.fromkeys(counted["prompt"])))


def spread(prompts: Sequence[str], most: int) -> tuple[str, ...]:
    """Pick at most so many, evenly spaced: neighbours are of one family, and every family should be shown."""
    count = min(most, len(prompts))
    return tuple(prompts[i * len(prompts) // count] for i in range(count))


def _sheet(store: Store, group: Group, path: Path) -> None:
    prompts, cells = spread(group.prompts, ROWS), group.cells[:COLUMNS]
    left_out = {"prompts": len(group.prompts) - len(prompts), "methods": len(group.cells) - len(cells)}
    remarks = [f"{count} more {what}" for what, count in left_out.items() if count]
    with rc_context(STYLE):
        figure = Figure(figsize=(1.5 * len(cells) + 1.6, 1.5 * len(prompts) + 0.9), dpi=130, layout="constrained")
        figure.suptitle("; ".join([group.title, *remarks]), fontsize=9)
        for row, prompt in enumerate(prompts):
            for column, cell in enumerate(cells):
                place = row * len(cells) + column + 1
                axes = tile(store, figure, (len(prompts), len(cells), place), group.sample(cell, prompt))
                if row == 0:
                    axes.set_title(fill(cell.meta.label, 20), fontsize=7)
                if column == 0:
                    name_row(axes, row_name(group.sample(cell, prompt), prompt))
        figure.savefig(path, metadata={"Software": None})


def row_name(sample: pd.Series[Any] | None, prompt: str) -> str:
    """Return the text of a prompt if it is short, such as a caption; else its id."""
    text = None if sample is None else sample.get("prompt_text")
    return text if isinstance(text, str) and 0 < len(text) <= CAPTION else prompt


def name_row(axes: Any, name: str) -> None:
    """Write a name next to the first picture of its row, as text: 3-D axes show no axis label."""
    write = axes.text2D if hasattr(axes, "text2D") else axes.text
    write(-0.08, 0.5, fill(name, 18), transform=axes.transAxes, fontsize=6, ha="right", va="center")


def tile(store: Store, figure: Figure, place: tuple[int, int, int], sample: pd.Series[Any] | None) -> Any:
    """Draw a sample's picture or mesh, or the reason why it has none.

    Args:
        place: rows, columns and number of the axes, from 1.
        sample: the sample, or None if the cell lacks it.

    Returns:
        The axes.
    """
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


def _lines(group: Group) -> Iterator[Sequence[str]]:
    for prompt in group.prompts:
        samples = [group.sample(cell, prompt) for cell in group.cells]
        yield [prompt, *("-" if s is None else str(s["text"] if s["status"] == "ok" else s["error"]) for s in samples)]
