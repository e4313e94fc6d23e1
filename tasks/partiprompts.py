"""PartiPrompts (P2): 1,632 prompts in twelve categories.

Source: Yu et al. 2022, arXiv:2206.10789; ``PartiPrompts.tsv`` of google-research/parti.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import hub_rows, locate, table, text_of
from stridebench.tasks.loaders.pictures import PictureTask

FILE = "PartiPrompts.tsv"
ORIGIN = "google-research/parti"


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
        path = locate(self.file, FILE)
        rows = hub_rows(self.hub, self.split) if self.hub else table(path, "PartiPrompts", ORIGIN, "\t")
        return tuple(
            Prompt(
                f"parti/{index:04d}",
                text_of(row, "Prompt", where),
                category=text_of(row, "Category", where),
                data={"challenge": row.get("Challenge") or "", "note": row.get("Note") or ""},
            )
            for index, (where, row) in enumerate(rows)
        )
