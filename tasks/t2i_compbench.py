"""T2I-CompBench++: eight categories of compositional prompts, 300 validation prompts each.

Source: Huang et al. 2023, arXiv:2307.06350; ``examples/dataset/*_val.txt`` of Karine-Huang/T2I-CompBench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from stridebench.harness.core.task import Prompt, SetScore
from stridebench.harness.errors import UnknownNameError
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import lines, locate
from stridebench.tasks.loaders.pictures import PictureTask
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics import t2i_compbench as bench
from stridebench.tasks.metrics.features import PictureSet, mean
from stridebench.tasks.metrics.images import FIGURES, Settings, elsewhere

FOLDER = "t2i_compbench"
ORIGIN = "examples/dataset of Karine-Huang/T2I-CompBench"

JUDGES = {
    **dict.fromkeys(("color", "shape", "texture"), "BLIP-VQA"),
    **dict.fromkeys(("spatial", "numeracy"), "UniDet"),
    "3d_spatial": "UniDet and a depth net",
    "complex": "BLIP-VQA, UniDet and CLIP together",
}
HOW = "score the pictures with Karine-Huang/T2I-CompBench, and its vqa_result.json with tasks.metrics.t2i_compbench"
DEPTH = weights.WeightFile("dpt_hybrid-midas-501f0c75.pt", "isl-org/DPT", "501f0c75")


def _non_spatial(picture_set: PictureSet, settings: Settings) -> SetScore:
    """Return the mean cosine under OpenAI's ViT-B/32, over the pictures of this category."""
    from stridebench.tasks.metrics.clip import Clip

    subset = picture_set.only("non_spatial")
    clip = Clip("ViT-B-32-quickgelu", weights.find(weights.CLIP_B32, settings.weights))
    return mean(subset.ids, clip.cosines(subset.pictures, subset.texts).tolist() if subset.ids else ())


@TASKS.register("t2i_compbench")
@dataclass(frozen=True)
class T2ICompBench(PictureTask):
    """Draw prompts of T2I-CompBench by category, in the order of the files; ids are category and row, from 0.

    Args:
        folder: contains the files ``CATEGORY_val.txt``.
        category: one of the eight; "" takes all.
    """

    folder: str = ""
    category: str = ""

    source = "arXiv:2307.06350"
    set_metrics = (*FIGURES, *bench.FIGURES)
    optional_set_metrics = FIGURES
    own: ClassVar = {
        **{
            f"t2i_{name}": partial(elsewhere, requirements=(DEPTH,) if "depth" in judge else (), how=f"{judge}; {HOW}")
            for name, judge in JUDGES.items()
        },
        "t2i_non_spatial": _non_spatial,
    }

    def every(self) -> Sequence[Prompt]:
        if self.category and self.category not in bench.CATEGORIES:
            raise UnknownNameError("T2I-CompBench++ category", self.category, bench.CATEGORIES)
        folder = locate(self.folder, FOLDER)
        categories = (self.category,) if self.category else bench.CATEGORIES
        return tuple(prompt for name in categories for prompt in _category(folder, name))


def _category(folder: Path, name: str) -> list[Prompt]:
    texts = _texts(folder, f"{name}_val.txt")
    data: list[dict[str, str]] = [{} for _ in texts]
    if name == "complex":
        spatial, action = (_texts(folder, f"complex_val_{kind}.txt") for kind in ("spatial", "action"))
        data = [{"kind": bench.kind_of(text, spatial, action)} for text in texts]
    return [
        Prompt(f"t2i/{name}/{index:04d}", text, category=name, data=more)
        for index, (text, more) in enumerate(zip(texts, data, strict=True))
    ]


def _texts(folder: Path, name: str) -> list[str]:
    return [line for _, line in lines(folder / name, f"T2I-CompBench++ prompts {name}", ORIGIN)]
