"""Pictures in the folders of official evaluations, and their results read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stridebench.harness.core.task import Prompt, Stored
from stridebench.harness.errors import UsageError
from stridebench.tasks.exchange.pictures import DpgLayout, GenEvalLayout, T2ILayout, VBenchLayout
from stridebench.tasks.metrics.dpg import Proposition
from tests.support.picture_benchmarks import GENEVAL


def picture(folder: Path, name: str, shade: int) -> Path:
    path = folder / f"{name}.png"
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)
    return path


def geneval_outputs(folder: Path) -> list[Stored]:
    prompts = [Prompt(f"geneval/{n:05d}", str(row["prompt"]), data=dict(row)) for n, row in enumerate(GENEVAL)]
    return [Stored(p, r, picture(folder, f"{p.id[-1]}-{r}", 40 * r)) for p in prompts for r in range(2)]


def results(path: Path, outputs: list[Stored]) -> Path:
    """As evaluate_images.py writes them."""
    rows = [{"tag": o.prompt.data["tag"], "metadata": json.dumps(o.prompt.data), "correct": True} for o in outputs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_geneval_reads_its_own_folders_and_its_results_are_of_these_prompts(tmp_path: Path) -> None:
    outputs = geneval_outputs(tmp_path)
    command = GenEvalLayout().write(outputs, tmp_path / "out")
    folders = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert folders == ["00000", "00001"] and "evaluate_images.py" in command
    assert json.loads((tmp_path / "out/00001/metadata.jsonl").read_text()) == GENEVAL[1]
    assert sorted(path.name for path in (tmp_path / "out/00000/samples").iterdir()) == ["00000.png", "00001.png"]
    scores = GenEvalLayout().read({"": results(tmp_path / "r.jsonl", outputs)}, outputs)
    assert scores["geneval_counting"].value == 1.0 and scores["geneval_counting"].n == 2
    for other in (outputs[:3], [*outputs, outputs[0]]):
        with pytest.raises(UsageError, match="another prompt set or other outputs"):
            GenEvalLayout().read({"": results(tmp_path / "r.jsonl", other)}, outputs)


def test_geneval_results_name_the_pictures_of_this_cell(tmp_path: Path) -> None:
    """The same prompts drawn by another method: other bytes. Results whose pictures are gone count by their numbers."""
    outputs, path = geneval_outputs(tmp_path), tmp_path / "r.jsonl"
    GenEvalLayout().write(outputs, tmp_path / "out")
    results(path, outputs)
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def read(folder: str, numbers: tuple[int, ...] = (0, 0, 1, 1)) -> object:
        files = [f"{folder}/{number:05d}/samples/{r % 2:05d}.png" for r, number in enumerate(numbers)]
        lines = [json.dumps({**row, "filename": file}) for row, file in zip(rows, files, strict=True)]
        path.write_text("\n".join(lines))
        return GenEvalLayout().read({"": path}, outputs)

    assert read(str(tmp_path / "out")) == read("/moved/to/another/machine")
    with pytest.raises(UsageError, match=r"other outputs: 2 of its 4 are not of this cell.*00007/samples"):
        read("/elsewhere", (0, 0, 7, 7))
    picture(tmp_path / "out/00001/samples", "00001", 99)
    with pytest.raises(UsageError, match=r"00001/samples/00001\.png, which is another picture than that of this cell"):
        read(str(tmp_path / "out"))
    path.write_text(json.dumps({**rows[0], "metadata": "{"}))
    with pytest.raises(UsageError, match=r"metadata is '\{', not a JSON object"):
        GenEvalLayout().read({"": path}, outputs)


def test_a_cell_of_another_task_is_refused(tmp_path: Path) -> None:
    outputs = [Stored(Prompt("coco/1", "a cat"), 0, picture(tmp_path, "a", 9))]
    with pytest.raises(UsageError, match="coco/1 is not a prompt of this benchmark"):
        GenEvalLayout().write(outputs, tmp_path / "out")
    with pytest.raises(UsageError, match="not a prompt of T2I"):
        T2ILayout().write(outputs, tmp_path)
    with pytest.raises(UsageError, match="takes pictures"):
        VBenchLayout().write([Stored(Prompt("a", "b"), 0, "a text")], tmp_path)


def test_dpg_reads_four_pictures_of_a_prompt_from_one_file(tmp_path: Path) -> None:
    asked = (Proposition(1, (0,), "entity - whole", "Is there a cat?"),)
    prompt = Prompt("dpg/17", "a cat", data={"item": "17", "questions": asked})
    outputs = [Stored(prompt, r, picture(tmp_path, str(r), 60 * r)) for r in range(4)]
    folder = tmp_path / "out"
    folder.mkdir()
    assert "--resolution 8 --pic-num 4" in DpgLayout().write(outputs, folder)
    square = np.asarray(Image.open(folder / "17.png"))
    assert square.shape == (16, 16, 3) and [square[0, 0, 0], square[0, 8, 0], square[8, 0, 0]] == [0, 60, 120]
    crops = ((0, 0, 8, 8), (8, 0, 16, 8), (0, 8, 8, 16), (8, 8, 16, 16))
    answers = ("yes", "yes", "no", "yes")
    detail = tmp_path / "x_detail.txt"
    detail.write_text("".join(f"a/17.png, {c}, Is there a cat?, {a}\n" for c, a in zip(crops, answers, strict=True)))
    assert DpgLayout().read({"": detail}, outputs)["dpg_bench"].value == 75.0
    with pytest.raises(UsageError, match=r"one picture of a prompt or 4; dpg/17 has 3"):
        DpgLayout().write(outputs[:3], folder)


def test_t2i_numbers_the_pictures_of_a_category(tmp_path: Path) -> None:
    prompts = [Prompt(f"t2i/color/{n}", f"a {word} bus", category="color") for n, word in enumerate(("red", "blue"))]
    outputs = [Stored(p, 0, picture(tmp_path, str(n), 9)) for n, p in enumerate(prompts)]
    T2ILayout().write(outputs, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out/color/samples").iterdir())
    assert names == ["a blue bus_000001.png", "a red bus_000000.png"]
    path = tmp_path / "vqa_result.json"
    path.write_text(json.dumps([{"question_id": n, "answer": str(n / 2)} for n in range(2)]))
    assert T2ILayout().read({"color": path}, outputs)["t2i_color"].value == 0.25
    with pytest.raises(UsageError, match="1 of its 2 are not of this cell"):
        T2ILayout().read({"color": path}, outputs[:1])
    with pytest.raises(UsageError, match="write CATEGORY=FILE with one of color; found 'shape'"):
        T2ILayout().read({"shape": path}, outputs)
