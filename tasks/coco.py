"""MS-COCO 2017: captions of the validation pictures.

Source: Lin et al. 2014, arXiv:1405.0312; ``annotations/captions_val2017.json`` of annotations_trainval2017.zip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Where, json_file, locate, text_of
from stridebench.tasks.loaders.pictures import PictureTask

FILE = "captions_val2017.json"
ORIGIN = "annotations_trainval2017.zip of the MS-COCO project"


@TASKS.register("coco")
@dataclass(frozen=True)
class Coco(PictureTask):
    """Draw captions of COCO: one a picture, of the lowest id or the longest, or every one; ordered by picture and id.

    Args:
        file: ``captions_val2017.json``.
        every_caption: take all five captions of a picture instead of one.
        longest: take the longest caption of a picture, the first in the file of equally long ones, as ADT-Tree does.
    """

    file: str = ""
    every_caption: bool = False
    longest: bool = False

    source = "arXiv:1405.0312"

    def every(self) -> Sequence[Prompt]:
        path = locate(self.file, FILE)
        captions = json_file(path, "MS-COCO captions", ORIGIN)
        if self.every_caption and self.longest:
            raise UsageError("coco was given every_caption and longest; take one of them")
        rows = _captions(captions, path)
        if self.longest:
            rows.sort(key=lambda row: -len(row.text or ""))  # stable: of equally long ones the first
        else:
            rows.sort(key=lambda row: row.data["caption_id"])
        rows.sort(key=lambda row: row.data["image_id"])
        if self.every_caption:
            return rows
        first: dict[int, Prompt] = {}
        for row in rows:
            first.setdefault(row.data["image_id"], row)
        return tuple(first.values())


def _captions(captions: Any, path: Path) -> list[Prompt]:
    if not isinstance(captions, dict) or not isinstance(captions.get("annotations"), list):
        raise Where(path, 1).fault("no list `annotations`, as the captions have")
    names = {image.get("id"): image.get("file_name", "") for image in captions.get("images", ())}
    out = []
    for number, row in enumerate(captions["annotations"], 1):
        where = Where(path, number, "annotation")
        if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in ("id", "image_id")):
            raise where.fault("no numbers id and image_id")
        data = {"image_id": row["image_id"], "caption_id": row["id"], "file_name": names.get(row["image_id"], "")}
        out.append(Prompt(f"coco/{row['id']}", text_of(row, "caption", where), data=data))
    return out
