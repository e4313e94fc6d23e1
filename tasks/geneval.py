"""GenEval: 553 prompts of six families, each with the objects that a detector must find in the picture.

Source: Ghosh et al. 2023, arXiv:2310.11513; ``prompts/evaluation_metadata.jsonl`` of djghosh13/geneval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from stridebench.harness.core.task import Prompt
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Where, hub_rows, json_lines, locate, text_of
from stridebench.tasks.loaders.pictures import PictureTask
from stridebench.tasks.metrics import geneval
from stridebench.tasks.metrics.images import FIGURES, elsewhere

FILE = "evaluation_metadata.jsonl"
ORIGIN = "the folder prompts of djghosh13/geneval"
JUDGE = "Mask2Former under mmdet; score the run's pictures with djghosh13/geneval, and its results.jsonl with "


@TASKS.register("geneval")
@dataclass(frozen=True)
class GenEval(PictureTask):
    """Draw prompts of GenEval, in the order of the file; ids are the official folder numbers.

    Args:
        file: ``evaluation_metadata.jsonl``.
        hub: a data set of the hub with the same fields, instead of a file.
        split: of the data set of the hub.
    """

    file: str = ""
    hub: str = ""
    split: str = "train"

    source = "arXiv:2310.11513"
    set_metrics = (*FIGURES, *geneval.FIGURES)
    optional_set_metrics = FIGURES
    own: ClassVar = {
        figure: partial(elsewhere, requirements=(geneval.DETECTOR,), how=f"{JUDGE}stridebench.tasks.metrics.geneval")
        for figure in geneval.FIGURES
    }

    def every(self) -> Sequence[Prompt]:
        path = locate(self.file, FILE)
        rows = hub_rows(self.hub, self.split) if self.hub else json_lines(path, "GenEval prompts", ORIGIN)
        return tuple(_prompt(index, row, where) for index, (where, row) in enumerate(rows))


def _prompt(index: int, row: Mapping[str, Any], where: Where) -> Prompt:
    tag = text_of(row, "tag", where)
    if tag not in geneval.TAGS:
        raise where.fault(f"tag is {tag!r}; known: {', '.join(geneval.TAGS)}")
    objects = [*(row.get("include") or ()), *(row.get("exclude") or ())]
    if not row.get("include") or not all(isinstance(o, dict) and {"class", "count"} <= o.keys() for o in objects):
        raise where.fault("include must list objects with class and count")
    return Prompt(f"geneval/{index:05d}", text_of(row, "prompt", where), category=tag, data=dict(row))
