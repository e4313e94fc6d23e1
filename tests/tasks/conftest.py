"""Folders with small files of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stridebench.tasks.captions import LaionCoco, PartiPrompts
from stridebench.tasks.coco import Coco
from stridebench.tasks.dpg_bench import DpgBench
from stridebench.tasks.geneval import GenEval
from stridebench.tasks.imagenet_classes import ImageNetClasses
from stridebench.tasks.metrics import t2i_compbench
from stridebench.tasks.t2i_compbench import T2ICompBench
from tests.support.picture_benchmarks import COCO, DPG_CSV, GENEVAL, PARTI, write_text
from tests.support.text_benchmarks import FILES, GSM8K, NAMES, PLACES, write_rows


@pytest.fixture()
def text_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the files of all text benchmarks."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    for name in NAMES:
        write_rows(tmp_path / "data" / PLACES[name], FILES[name])
    write_rows(tmp_path / "data/gsm8k/train.jsonl", GSM8K)
    return tmp_path / "data"


@pytest.fixture()
def picture_files(tmp_path: Path) -> Path:
    """A folder with a small file of each picture benchmark."""
    write_text(tmp_path / "captions_val2017.json", json.dumps(COCO))
    write_text(tmp_path / "PartiPrompts.tsv", PARTI)
    write_text(tmp_path / "evaluation_metadata.jsonl", "\n".join(map(json.dumps, GENEVAL)))
    for name in t2i_compbench.CATEGORIES:
        write_text(tmp_path / f"t2i_compbench/{name}_val.txt", f"a {name} prompt.\n\nanother {name} prompt.\n")
    write_text(tmp_path / "t2i_compbench/complex_val_spatial.txt", "a complex prompt.\n")
    write_text(tmp_path / "t2i_compbench/complex_val_action.txt", "A different prompt.\n")
    write_text(tmp_path / "dpg_bench/prompts/partiprompts1.txt", "A castle\nby the sea. ")
    write_text(tmp_path / "dpg_bench/prompts/COCOval2014000000000001.txt", "a cat")
    write_text(tmp_path / "dpg_bench/dpg_bench.csv", DPG_CSV)
    write_text(
        tmp_path / "laion_coco.jsonl", '{"URL": "u", "TEXT": "t", "top_caption": "a cat"}\n{"top_caption": "a dog"}\n'
    )
    write_text(
        tmp_path / "imagenet_class_index.json", '{"0": ["n01440764", "tench"], "1": ["n01443537", "great_white_shark"]}'
    )
    return tmp_path


@pytest.fixture()
def picture_tasks(picture_files):
    """The tasks over these files, by name."""
    return {
        "coco": Coco(file=str(picture_files / "captions_val2017.json")),
        "partiprompts": PartiPrompts(file=str(picture_files / "PartiPrompts.tsv")),
        "geneval": GenEval(file=str(picture_files / "evaluation_metadata.jsonl")),
        "t2i_compbench": T2ICompBench(folder=str(picture_files / "t2i_compbench")),
        "dpg_bench": DpgBench(folder=str(picture_files / "dpg_bench")),
        "laion_coco": LaionCoco(file=str(picture_files / "laion_coco.jsonl")),
        "imagenet_classes": ImageNetClasses(file=str(picture_files / "imagenet_class_index.json")),
    }
