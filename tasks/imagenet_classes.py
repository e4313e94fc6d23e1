"""The 1,000 classes of ImageNet, for class-conditional models.

Source: Russakovsky et al. 2015, arXiv:1409.0575. The file is ``imagenet_class_index.json`` (id -> synset, name), a JSON
list of names, or a text with one name a line, which a synset may precede; line 1 is class 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Prompt
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Where, json_file, lines, locate
from stridebench.tasks.loaders.pictures import PictureTask

FILE = "imagenet_class_index.json"
WHAT, ORIGIN = "ImageNet class names", "Keras's or torchvision's list of ImageNet classes"
SYNSET = re.compile(r"n\d{8}")


@TASKS.register("imagenet_classes")
@dataclass(frozen=True)
class ImageNetClasses(PictureTask):
    """Draw a class of ImageNet: number and name, such as ``207 golden retriever``; ``data`` has both as well.

    Args:
        file: the list of classes, .json or text.
    """

    file: str = ""

    source = "arXiv:1409.0575"

    def every(self) -> Sequence[Prompt]:
        path = locate(self.file, FILE)
        classes = _from_json(path) if path.suffix == ".json" else _from_text(path)
        return tuple(
            Prompt(f"imagenet/{number}", f"{number} {name}", data={"class": number, "synset": synset, "name": name})
            for number, (synset, name) in enumerate(classes)
        )


def _from_json(path: Path) -> list[tuple[str, str]]:
    classes: Any = json_file(path, WHAT, ORIGIN)
    if isinstance(classes, list):
        classes = {str(number): ["", name] for number, name in enumerate(classes)}
    if not isinstance(classes, dict) or not classes:
        raise Where(path, 1).fault("expected an object of class ids, or a list of names")
    out = []
    for number in range(len(classes)):
        pair = classes.get(str(number))
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise Where(path, number, "class").fault(f"expected [synset, name]; found {pair!r}")
        out.append((pair[0], pair[1].replace("_", " ")))
    return out


def _from_text(path: Path) -> list[tuple[str, str]]:
    out = []
    for _, line in lines(path, WHAT, ORIGIN):
        first, _, rest = line.partition(" ")
        out.append((first, rest.strip()) if SYNSET.fullmatch(first) else ("", line))
    return out
