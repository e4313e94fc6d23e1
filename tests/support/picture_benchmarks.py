"""Small files of the picture benchmarks in the published formats."""

from __future__ import annotations

from pathlib import Path

NAMES = ("coco", "partiprompts", "geneval", "t2i_compbench", "dpg_bench", "laion_coco", "imagenet_classes")


COCO = {
    "info": {"year": 2017},
    "licenses": [],
    "images": [{"id": 42, "file_name": "000000000042.jpg"}, {"id": 7, "file_name": "000000000007.jpg"}],
    "annotations": [
        {"image_id": 42, "id": 9, "caption": "A dog lies in shoes. "},
        {"image_id": 42, "id": 3, "caption": "A small dog sleeps."},
        {"image_id": 7, "id": 5, "caption": "Two cats."},
    ],
}


PARTI = """Prompt\tCategory\tChallenge\tNote
bond\tAbstract\tBasic\tBiology
a "robot" sign\tArtifacts\tWriting & Symbols\t
"""


GENEVAL = [
    {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"},
    {
        "tag": "counting",
        "include": [{"class": "cow", "count": 3}],
        "exclude": [{"class": "cow", "count": 4}],
        "prompt": "a photo of three cows",
    },
]


COLUMNS = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple"


DPG_CSV = f"""{COLUMNS},question_natural_language
0,left out,,1,0,global,,global - (x),Q?
COCOval2014000000000001,a cat,,1,0,entity,whole,entity - whole (cat),Is there a cat?
"""


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
