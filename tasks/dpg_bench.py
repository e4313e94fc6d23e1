"""DPG-Bench: 1,065 dense prompts, each with its propositions and their dependencies.

Source: Hu et al. 2024, arXiv:2403.05135; ``dpg_bench/prompts/*.txt`` and ``dpg_bench.csv`` of TencentQQGYLab/ELLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from harness.registry import TASKS
from harness.task import Prompt
from tasks._pictures import PictureTask
from tasks._prompt_files import locate, missing, read
from tasks.metrics import dpg
from tasks.metrics._images import FIGURES, elsewhere

FOLDER = "dpg_bench"
JUDGE = "mPLUG-large of ModelScope; ask it with compute_dpg_bench.py of TencentQQGYLab/ELLA, and score them with "


@TASKS.register("dpg_bench")
@dataclass(frozen=True)
class DpgBench(PictureTask):
    """One prompt a text file, in the order of their names; ``data["questions"]`` where the csv lies beside them.

    Args:
        folder: ``dpg_bench``, with the folder ``prompts`` and, where it is at hand, ``dpg_bench.csv``.
    """

    folder: str = ""

    source = "arXiv:2403.05135"
    set_metrics = (*FIGURES, *dpg.FIGURES)
    own: ClassVar = {figure: partial(elsewhere, how=f"{JUDGE}tasks.metrics.dpg") for figure in dpg.FIGURES}

    def every(self) -> Sequence[Prompt]:
        folder = locate(self.folder, FOLDER)
        files = sorted((folder / "prompts").glob("*.txt"))
        if not files:
            raise missing(folder / "prompts", "DPG-Bench prompts (*.txt)", dpg.ORIGIN)
        table = folder / "dpg_bench.csv"
        questions = dpg.read_questions(table) if table.exists() else {}
        return tuple(
            Prompt(
                f"dpg/{file.stem}",
                " ".join(read(file, "a DPG-Bench prompt", dpg.ORIGIN).split()),
                data={"item": file.stem, "questions": questions.get(file.stem, ())},
            )
            for file in files
        )
