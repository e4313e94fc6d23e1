"""LAION-COCO: web pictures with generated captions; also its aesthetic subset, by another column.

Source: the data set laion/laion-coco of the hub, in parquet; columns URL, TEXT, top_caption, all_captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where, hub_rows, json_lines, locate, parquet, text_of
from stridebench.tasks.loaders.pictures import PictureTask

FILE = "laion_coco.parquet"
WHAT = "LAION-COCO captions"
ORIGIN = "laion/laion-coco on the hub, any of its parquet files"


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
        path = locate(self.file, FILE)
        if self.hub:
            return hub_rows(self.hub, self.split)
        if path.suffix == ".parquet":
            return parquet(path, WHAT, ORIGIN)
        if path.suffix == ".jsonl":
            return json_lines(path, WHAT, ORIGIN)
        raise UsageError(f"{path} is neither .parquet nor .jsonl; give {WHAT} in one of them")
