"""Captions: those that a suite writes out, such as a paper's examples, PartiPrompts (P2), and LAION-COCO.

PartiPrompts are 1,632 prompts in twelve categories. Source: Yu et al. 2022, arXiv:2206.10789; ``PartiPrompts.tsv`` of
google-research/parti.

LAION-COCO are web pictures with generated captions; also its aesthetic subset, by another column. Source: the data set
laion/laion-coco of the hub, in parquet; columns URL, TEXT, top_caption, all_captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where, hub_rows, json_lines, locate, parquet, table, text_of
from stridebench.tasks.loaders.pictures import PictureTask

PARTI, PARTI_ORIGIN = "PartiPrompts.tsv", "google-research/parti"
LAION, LAION_ORIGIN = "laion_coco.parquet", "laion/laion-coco on the hub, any of its parquet files"
WHAT = "LAION-COCO captions"


@TASKS.register("captions")
@dataclass(frozen=True)
class Captions(PictureTask):
    """Draw your own captions; ids are their numbers, from 0.

    Args:
        texts: one caption, or a tuple of them. In a suite, a list of captions is a sweep with a cell for each, and a
            list in a list is one set: ``texts: [[a cat, a dog]]``.
    """

    texts: tuple[str, ...] | str = ()

    source = "texts of the suite"

    def every(self) -> Sequence[Prompt]:
        texts = (self.texts,) if isinstance(self.texts, str) else self.texts
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UsageError(f"the task captions was given texts={self.texts!r}; give a caption, or several")
        return tuple(Prompt(f"captions/{number}", text.strip()) for number, text in enumerate(texts))


@TASKS.register("partiprompts")
@dataclass(frozen=True)
class PartiPrompts(PictureTask):
    """Draw prompts of PartiPrompts, in the order of the file; an id is the number of the row, from 0.

    Args:
        file: ``PartiPrompts.tsv``.
        hub: a data set of the hub with the same columns, instead of a file.
        split: of the data set of the hub.
    """

    file: str = ""
    hub: str = ""
    split: str = "train"

    source = "arXiv:2206.10789"

    def every(self) -> Sequence[Prompt]:
        path = locate(self.file, PARTI)
        rows = hub_rows(self.hub, self.split) if self.hub else table(path, "PartiPrompts", PARTI_ORIGIN, "\t")
        return tuple(
            Prompt(
                f"parti/{index:04d}",
                text_of(row, "Prompt", where),
                category=text_of(row, "Category", where),
                data={"challenge": row.get("Challenge") or "", "note": row.get("Note") or ""},
            )
            for index, (where, row) in enumerate(rows)
        )


@TASKS.register("laion_coco")
@dataclass(frozen=True)
class LaionCoco(PictureTask):
    """Draw captions of LAION-COCO, in the order of the file; an id is the number of the row, from 0.

    Args:
        file: .parquet or .jsonl.
        hub: a data set of the hub, instead of a file.
        split: of the data set of the hub.
        column: the column of the captions: ``top_caption``, or ``caption`` in the aesthetic subset.
    """

    file: str = ""
    hub: str = ""
    split: str = "train"
    column: str = "top_caption"

    source = "laion/laion-coco"

    def every(self) -> Sequence[Prompt]:
        return tuple(
            Prompt(
                f"laion_coco/{index:06d}",
                text_of(row, self.column, where),
                data={"url": str(row.get("URL") or row.get("url") or "")},
            )
            for index, (where, row) in enumerate(self._rows())
        )

    def _rows(self) -> Sequence[tuple[Where, Row]]:
        path = locate(self.file, LAION)
        if self.hub:
            return hub_rows(self.hub, self.split)
        if path.suffix == ".parquet":
            return parquet(path, WHAT, LAION_ORIGIN)
        if path.suffix == ".jsonl":
            return json_lines(path, WHAT, LAION_ORIGIN)
        raise UsageError(f"{path} is neither .parquet nor .jsonl; give {WHAT} in one of them")
