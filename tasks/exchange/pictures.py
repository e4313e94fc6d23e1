"""Pictures in the folders of GenEval, DPG-Bench, T2I-CompBench++ and VBench, and the results of the first three.

Sources: djghosh13/geneval, evaluation/evaluate_images.py; TencentQQGYLab/ELLA, dpg_bench/compute_dpg_bench.py;
Karine-Huang/T2I-CompBench, BLIPvqa_eval/BLIP_vqa.py; Vchitect/VBench, prompts/README.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Layout, SetScore, Stored
from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.registry import LAYOUTS
from stridebench.tasks.exchange.texts import by_prompt, field, refuse_others
from stridebench.tasks.metrics import dpg, geneval, t2i_compbench

CROPS = 4
"""Pictures of a prompt that DPG-Bench reads from one file, two by two."""


@LAYOUTS.register("geneval")
class GenEvalLayout(Layout):
    """NUMBER/metadata.jsonl and NUMBER/samples/REPETITION.png; results are the ``results.jsonl`` of its script."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write one folder a prompt."""
        for output in outputs:
            place = folder / _number(output)
            (place / "samples").mkdir(parents=True, exist_ok=True)
            metadata = json.dumps(_metadata(output))
            (place / "metadata.jsonl").write_text(metadata, encoding="utf-8")
            shutil.copyfile(output.picture(), place / "samples" / f"{output.repetition:05d}.png")
        return f"python evaluation/evaluate_images.py {folder} --outfile results.jsonl"

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Read ``results.jsonl``; each picture has a line with its prompt's metadata."""
        results = geneval.read_results(files[""])
        judged = [_normal(json.loads(result.metadata)) for result in results]
        refuse_others(files[""], judged, [_normal(_metadata(output)) for output in outputs])
        self._check_pictures(files[""], [result.file for result in results if result.file], outputs)
        return geneval.summary(results)

    @staticmethod
    def _check_pictures(path: Path, judged: Sequence[str], outputs: Sequence[Stored]) -> None:
        """Refuse results whose lines name other pictures: another number or, if they are here, other bytes."""
        own = {f"{_number(output)}/samples/{output.repetition:05d}.png": output.picture() for output in outputs}
        named = ["/".join(Path(file.replace("\\", "/")).parts[-3:]) for file in judged]
        if named:
            refuse_others(path, named, list(own))
        for file, name in zip(judged, named, strict=True):
            if Path(file).is_file() and Path(file).read_bytes() != own[name].read_bytes():
                raise UsageError(
                    f"{path} judged {file}, which is another picture than that of this cell: its results are of other "
                    f"outputs. Judge what `stride exchange export` wrote for this cell"
                )


def _number(output: Stored) -> str:
    return output.prompt.id.rpartition("/")[2]


def _metadata(output: Stored) -> dict[str, object]:
    field(output, "include")
    return dict(output.prompt.data)


def _normal(metadata: Any) -> str:
    return json.dumps(metadata, sort_keys=True)


@LAYOUTS.register("dpg")
class DpgLayout(Layout):
    """ITEM.png: one picture, or four as a square; results are the ``*_detail.txt`` of its script."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write one file a prompt, or raise UsageError if a prompt has neither one nor four pictures."""
        from PIL import Image

        side, most = 0, 0
        for group in by_prompt(outputs):
            if len(group) not in (1, CROPS):
                raise UsageError(
                    f"DPG-Bench reads one picture of a prompt or {CROPS}; {group[0].prompt.id} has {len(group)}. "
                    f"Run with --repetitions 1 or {CROPS}"
                )
            pictures = [Image.open(output.picture()).convert("RGB") for output in group]
            side, most = pictures[0].width, len(group)
            rows = 1 if most == 1 else 2
            square = Image.new("RGB", (rows * side, rows * pictures[0].height))
            for number, picture in enumerate(pictures):
                square.paste(picture, (number % rows * side, number // rows * pictures[0].height))
            square.save(folder / f"{field(group[0], 'item')}.png")
        return f"accelerate launch dpg_bench/compute_dpg_bench.py --image-root-path {folder} --resolution {side} " + (
            f"--pic-num {most}"
        )

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Read the answers; the questions are those of ``dpg_bench.csv`` in the task's folder."""
        prompts = {str(field(output, "item")): output.prompt for output in outputs}
        details = dpg.read_details(files[""])
        refuse_others(files[""], list(details), list(prompts))
        questions = {item: prompt.data["questions"] for item, prompt in prompts.items()}
        if lacking := [item for item, asked in questions.items() if not asked]:
            raise UsageError(
                f"the prompt {lacking[0]} has no questions; put dpg_bench.csv of {dpg.ORIGIN} into the task's folder"
            )
        try:
            marks = {
                item: dpg.picture_marks(questions[item], [dpg.by_id(questions[item], crop) for crop in crops])
                for item, crops in details.items()
            }
        except OutputError as error:
            raise UsageError(f"{files['']}: {error}") from error
        return dpg.summary(questions, marks)


@LAYOUTS.register("t2i")
class T2ILayout(Layout):
    """CATEGORY/samples/PROMPT_NUMBER.png; results are one ``vqa_result.json`` a category: --t2i color=FILE."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write one folder a category; numbers count its pictures in the order of the prompts."""
        for category, group in _categories(outputs).items():
            place = folder / category / "samples"
            place.mkdir(parents=True)
            for number, output in enumerate(group):
                shutil.copyfile(output.picture(), place / f"{_words(output).replace('_', ' ')}_{number:06d}.png")
        return f"python BLIPvqa_eval/BLIP_vqa.py --out_dir={folder}/color"

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Read a category's scores. A result names its picture by a number, so the numbers are compared."""
        groups, results = _categories(outputs), {}
        for category, path in files.items():
            if category not in groups:
                raise UsageError(f"{path}: write CATEGORY=FILE with one of {', '.join(groups)}; found {category!r}")
            results[category] = t2i_compbench.read_results(path)
            refuse_others(path, list(results[category]), list(range(len(groups[category]))))
        per_prompt = 1 + max(output.repetition for output in outputs)
        return {
            name: score
            for name, score in t2i_compbench.summary(results, per_prompt).items()
            if name.removeprefix("t2i_") in results
        }


def _categories(outputs: Sequence[Stored]) -> dict[str, list[Stored]]:
    groups: dict[str, list[Stored]] = {}
    for group in by_prompt(outputs):
        if group[0].prompt.category not in t2i_compbench.CATEGORIES:
            raise UsageError(f"{group[0].prompt.id} is not a prompt of T2I-CompBench++; name a cell of t2i_compbench")
        groups.setdefault(group[0].prompt.category, []).extend(group)
    return groups


def _words(output: Stored) -> str:
    """The prompt's text as a part of a file's name."""
    return (output.prompt.text or output.prompt.id).replace("/", " ").replace("\n", " ").strip()[:200]


@LAYOUTS.register("vbench-like")
class VBenchLayout(Layout):
    """PROMPT-REPETITION.png, as VBench names its videos; results are not read back."""

    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write all pictures into one folder, or raise UsageError if two prompts have the same text."""
        for output in outputs:
            path = folder / f"{_words(output)}-{output.repetition}.png"
            if path.exists():
                raise UsageError(f"two prompts are called {_words(output)!r}; their files would have one name")
            shutil.copyfile(output.picture(), path)
        return f"vbench evaluate --videos_path {folder} --mode custom_input --dimension imaging_quality"
