"""Pictures of a folder as data: `stride train KIND --backbone NAME --data FOLDER`.

The folder has pictures, and their captions as Hugging Face's ImageFolder keeps them: ``metadata.jsonl`` with the keys
``file_name`` and ``text``. Without that file, ``NAME.txt`` next to a picture is its caption.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from stridebench.harness.backbones.checkpoints.files import of_file
from stridebench.harness.backbones.image.vq import to_signed
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.train.passages import AnyPlan, Passages
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import DEVELOPMENT_SHARE

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
METADATA = "metadata.jsonl"


class Captioned(NamedTuple):
    """A picture's file, and its caption, or "" if it has none."""

    file: Path
    text: str


@dataclass(frozen=True)
class PicturePlan(AnyPlan):
    """Pictures that the backbone's tokenizer turns into tokens; every eighth is of the development side.

    Args:
        limit: pictures used; 0: all.
    """

    folder: Path
    limit: int = 0
    device: str = "cpu"
    dtype: str = "bf16"
    task: str = field(default="pictures", init=False)

    def sides(self) -> tuple[list[Captioned], list[Captioned]]:
        """Pictures to train on and to check on."""
        pictures = read_folder(self.folder)[: self.limit or None]
        if len(pictures) < 2:
            raise UsageError(f"{self.folder} has {len(pictures)} pictures; give two or more, one of them to check")
        check = pictures[DEVELOPMENT_SHARE - 1 :: DEVELOPMENT_SHARE] or pictures[-1:]
        return [picture for picture in pictures if picture not in check], check

    def sha256(self) -> str:
        """Return the hash of all pictures and their captions."""
        pictures = [[picture.text, of_file(picture.file)] for side in self.sides() for picture in side]
        return hashlib.sha256(json.dumps(pictures).encode()).hexdigest()

    def passages(self, backbone: str) -> Passages:
        """Each caption with the tokens of its picture, cut to a square and resized to the backbone's pictures."""
        teacher = Teacher.load(backbone, self.dtype, self.device)
        train, check = ([_passage(teacher, picture) for picture in side] for side in self.sides())
        return Passages(teacher, train, check)


def read_folder(folder: Path) -> list[Captioned]:
    """The pictures of a folder in the order of their names, or of ``metadata.jsonl``."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give one of pictures and captions")
    if (folder / METADATA).is_file():
        return list(_listed(folder / METADATA))
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)
    texts = (path.with_suffix(".txt") for path in files)
    return [
        Captioned(path, text.read_text(encoding="utf-8").strip() if text.is_file() else "")
        for path, text in zip(files, texts, strict=True)
    ]


def _listed(path: Path) -> Iterator[Captioned]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            file, text = path.parent / row["file_name"], row.get("text", "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}:{number}: expected an object with file_name and text ({error})") from error
        if not isinstance(text, str) or not file.is_file():
            raise UsageError(f"{path}:{number}: {file} is not there, or its text is {text!r:.40} and no text")
        yield Captioned(file, text)


def square(path: Path, side: int) -> UInt8[np.ndarray, "S S 3"]:
    """Return a picture, cut to the square in its middle and resized, or raise UsageError if it is not one."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            return np.asarray(ImageOps.fit(picture.convert("RGB"), (side, side), Image.Resampling.LANCZOS))
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} cannot be read as a picture ({error}); take it out of the folder") from error


def signed(pictures: UInt8[Tensor, "B S S 3"]) -> Float[Tensor, "B 3 S S"]:
    """Pixels from -1 to 1, channels first."""
    return to_signed(pictures)


def side_of_pictures(teacher: Teacher) -> int:
    """Pixels a side of the backbone's pictures."""
    grid, name = teacher.capabilities.grid, teacher.backbone.name
    if grid is None or not hasattr(teacher.backbone, "tokenizer"):
        raise UsageError(f"{name} makes no pictures; pictures are data of models that do")
    if grid.rows != grid.columns:
        raise UsageError(f"{name} makes pictures of {grid.rows} x {grid.columns} cells; data must be square")
    return int(grid.rows * teacher.backbone.tokenizer().factor)


def _passage(teacher: Teacher, picture: Captioned) -> Passage:
    side, backbone = side_of_pictures(teacher), teacher.backbone
    if not picture.text:
        raise UsageError(
            f"{picture.file} has no caption, and {backbone.name} draws what a text says: write {METADATA} with "
            f"file_name and text, or {picture.file.with_suffix('.txt').name}"
        )
    name = hashlib.sha256(str(picture.file).encode()).hexdigest()[:8]
    encoded = backbone.open(Prompt(name, picture.text))
    pixels = torch.from_numpy(square(picture.file, side).copy())[None]
    codes = backbone.tokenizer().encode(pixels)[0]  # type: ignore[attr-defined]  # checked above
    grid = teacher.capabilities.grid
    assert grid is not None
    written = tokens_of(grid, backbone.picture_ids()[codes.cpu()])  # type: ignore[attr-defined]  # as its tokenizer
    return Passage((*encoded.tokens, *written), len(encoded.tokens), None, picture.text)


def tokens_of(grid: Grid, ids: Int[Tensor, "h w"]) -> list[int]:
    """A picture's tokens: the ids of its cells in raster order, with the forced ones between."""
    cells = iter(ids.flatten().tolist())
    forced = (grid.forced(position) for position in range(grid.start, grid.start + grid.length))
    return [next(cells) if token is None else token for token in forced]
