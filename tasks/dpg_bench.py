"""DPG-Bench: 1,065 dense prompts, each with its propositions and their dependencies.

Source: Hu et al. 2024, arXiv:2403.05135; ``dpg_bench/prompts/*.txt`` and ``dpg_bench.csv`` of TencentQQGYLab/ELLA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, did_you_mean
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import locate, missing, read
from stridebench.tasks.loaders.pictures import PictureTask
from stridebench.tasks.metrics import dpg
from stridebench.tasks.metrics.images import FIGURES, elsewhere

FOLDER = "dpg_bench"
JUDGE = "mPLUG-large of ModelScope; ask it with compute_dpg_bench.py of TencentQQGYLab/ELLA, and score them with "
SHOWN = Path(__file__).parent / "data" / "dpg_prompts.yaml"


@TASKS.register("dpg_bench")
@dataclass(frozen=True)
class DpgBench(PictureTask):
    """Draw long captions of DPG-Bench, a text file each, by name; ``data["questions"]`` if the csv is there.

    Args:
        folder: ``dpg_bench``, which contains the folder ``prompts`` and may contain ``dpg_bench.csv``.
        ids: which prompts, in this order, as one text or a tuple such as ``mulo_sd_fig10, stanford34``. An entry is
            the name of a prompt without ``.txt``, or of a paper's figure that shows prompts (see
            ``tasks/data/dpg_prompts.yaml``). Empty: all.
    """

    folder: str = ""
    ids: tuple[str, ...] | str = ()

    source = "arXiv:2403.05135"
    set_metrics = (*FIGURES, *dpg.FIGURES)
    optional_set_metrics = FIGURES
    own: ClassVar = {figure: partial(elsewhere, how=f"{JUDGE}stridebench.tasks.metrics.dpg") for figure in dpg.FIGURES}

    def every(self) -> Sequence[Prompt]:
        folder = locate(self.folder, FOLDER)
        files = {file.stem: file for file in sorted((folder / "prompts").glob("*.txt"))}
        if not files:
            raise missing(folder / "prompts", "DPG-Bench prompts (*.txt)", dpg.ORIGIN)
        table = folder / "dpg_bench.csv"
        questions = dpg.read_questions(table) if table.exists() else {}
        return tuple(
            Prompt(
                f"dpg/{name}",
                " ".join(read(files[name], "a DPG-Bench prompt", dpg.ORIGIN).split()),
                data={"item": name, "questions": questions.get(name, ())},
            )
            for name in self._chosen(files, folder / "prompts")
        )

    def _chosen(self, files: Mapping[str, Path], folder: Path) -> Sequence[str]:
        """Return the names of the chosen prompts without repeats."""
        entries = (
            self.ids.replace(",", " ").split() if isinstance(self.ids, str) else [str(entry) for entry in self.ids]
        )
        names = dict.fromkeys(name for entry in entries for name in shown_in_papers().get(entry, (entry,)))
        for name in names:
            if name not in files:
                guess = did_you_mean(name, [*files, *shown_in_papers()])
                raise UsageError(
                    f"dpg_bench: there is no prompt {name!r} among the {len(files)} of {folder}{guess or '.'} Give ids "
                    f"as their files are called, without .txt, or one of {', '.join(shown_in_papers())}"
                )
        return list(names) or list(files)


@cache
def shown_in_papers() -> Mapping[str, tuple[str, ...]]:
    """Return the names of the prompts that papers show pictures of, by paper and figure."""
    figures = load_yaml(SHOWN.read_text(encoding="utf-8"))
    return {figure: tuple(map(str, names)) for figure, names in figures.items()}
