"""The outputs of decodes: texts, pictures and meshes, and the files that hold them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import ContractError, OutputError, StoreError


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels as uint8 [height, width, 3], sRGB."""

    pixels: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        """Check the array."""
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 3 or self.pixels.shape[2] != 3:
            raise ContractError(f"a picture is uint8 [height, width, 3]; found {self.pixels.dtype} {self.pixels.shape}")


@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles: vertices float [n, 3] and faces int [m, 3] that index them, 0-based."""

    vertices: npt.NDArray[Any]
    faces: npt.NDArray[Any]

    def __post_init__(self) -> None:
        """Check the arrays.

        Raises:
            ContractError: wrong shapes, no face, or an index outside the vertices.
        """
        shapes = self.vertices.ndim == 2 == self.faces.ndim and self.vertices.shape[1] == 3 == self.faces.shape[1]
        if not shapes or not len(self.faces):
            raise ContractError(
                f"a mesh has vertices [n, 3] and faces [m, 3], m > 0; found {self.vertices.shape}, {self.faces.shape}"
            )
        if self.faces.min() < 0 or self.faces.max() >= len(self.vertices):
            raise ContractError(f"a face names vertex {self.faces.max()} of {len(self.vertices)}")


Output = str | Picture | Mesh


def as_text(output: Output) -> str:
    """The output as a text."""
    if isinstance(output, str):
        return output
    raise ContractError(f"the task scores texts, and the backbone made a {type(output).__name__.lower()}")


def as_picture(output: Output) -> Picture:
    """The output as a picture. ContractError: it is not one."""
    if isinstance(output, Picture):
        return output
    raise ContractError(f"the task scores pictures, and the backbone made a {type(output).__name__.lower()}")


def as_mesh(output: Output) -> Mesh:
    """The output as a mesh. ContractError: it is not one."""
    if isinstance(output, Mesh):
        return output
    raise ContractError(f"the task scores meshes, and the backbone made a {type(output).__name__.lower()}")


def save(output: Output, stem: Path) -> Path | None:
    """Write a picture as STEM.png or a mesh as STEM.ply and return the path. A text is in its sample: None."""
    if isinstance(output, str):
        return None
    stem.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(output, Picture):
        from PIL import Image

        path = stem.with_name(stem.name + ".png")
        Image.fromarray(output.pixels).save(path)
        return path
    path = stem.with_name(stem.name + ".ply")
    path.write_text(_ply(output), encoding="ascii")
    return path


def load(path: Path) -> Output:
    """Read what `save` wrote, or raise StoreError if the file is missing, damaged, or of another kind."""
    try:
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as image:
                return Picture(np.asarray(image.convert("RGB")))
        if path.suffix == ".ply":
            return _read_ply(path.read_text(encoding="ascii"))
    except (OSError, ValueError, LookupError, OverflowError, ContractError) as error:
        raise StoreError(f"{path} cannot be read as the output that was written there: {error}") from error
    raise StoreError(f"{path} is neither .png nor .ply")


def file_name(prompt: str, repetition: int) -> str:
    """A file name, unique for a prompt and repetition, whatever characters the id has."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in prompt)[:60]
    mark = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    return f"{plain}-{mark}-{repetition}"


def _ply(mesh: Mesh) -> str:
    head = (
        f"ply\nformat ascii 1.0\nelement vertex {len(mesh.vertices)}\nproperty float x\nproperty float y\n"
        f"property float z\nelement face {len(mesh.faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    points = "".join(f"{x:.6g} {y:.6g} {z:.6g}\n" for x, y, z in mesh.vertices.tolist())
    return head + points + "".join(f"3 {a} {b} {c}\n" for a, b, c in mesh.faces.tolist())


def _read_ply(text: str) -> Mesh:
    head, _, body = text.partition("end_header\n")
    counts = {words[1]: int(words[2]) for words in map(str.split, head.splitlines()) if words[:1] == ["element"]}
    lines = body.splitlines()
    n, m = counts["vertex"], counts["face"]
    if len(lines) < n + m:
        raise ValueError(f"{len(lines)} lines for {n} vertices and {m} faces")
    vertices = np.array([line.split() for line in lines[:n]], dtype=np.float64)
    faces = np.array([line.split()[1:] for line in lines[n : n + m]], dtype=np.int64)
    return Mesh(vertices, faces)


# Where each token of an output came from, as far as the stored steps say.


ACCEPTED, CORRECTED, BONUS, FORCED, DECODED = "accepted", "corrected", "bonus", "forced", "decoded"
ORIGINS = {
    ACCEPTED: "drafted, and accepted",
    CORRECTED: "drawn in the place of a rejected draft",
    BONUS: "drawn after the last draft, none of which was rejected",
    FORCED: "the only token that could stand there",
    DECODED: "drawn without a draft",
}
"""The origins of a token, and their meaning."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """What `Backbone.decode` is."""

    def __call__(self, tokens: Sequence[int]) -> object:
        """The output of ids."""


def origins(steps: Iterable[Any], tokens: int) -> list[str] | None:
    """Return the origin of each output token, one of ``ORIGINS``, or None if a canvas is filled in any order.

    Args:
        steps: of one decode, in order, with the attributes of `Step`.
    """
    steps = list(steps)
    if tokens > 1 and all(not step.drafted and step.emitted == 1 and step.rows >= tokens for step in steps):
        return None  # each pass reads every position and fills one of them
    out: list[str] = []
    for step in steps:
        if not step.drafted and step.emitted > 1:
            return None
        last = DECODED if not step.drafted else CORRECTED if step.tested > step.accepted else BONUS
        of_step = [ACCEPTED] * step.accepted + [last] * (step.emitted - step.accepted)
        out += [FORCED] * step.emitted if step.forced == step.emitted else of_step
    return out[:tokens]


def pieces(decode: Decoder, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to the output; several tokens of one character add it with the last of them.

    A token is decoded behind the one before it, because some tokenizers leave out the space of a first token.
    Nothing is returned if there is no tokenizer, or the tokens cannot be decoded one by one.
    """
    out: list[str] = []
    before: list[int] = []
    open_tokens: list[int] = []
    for token in tokens:
        open_tokens.append(token)
        try:
            head, text = decode(before) if before else "", decode([*before, *open_tokens])
        except OutputError:
            return ()
        if not isinstance(head, str) or not isinstance(text, str):
            return ()
        if text.endswith(UNREADABLE) and len(open_tokens) < 4:  # a character has four bytes at most
            out.append("")
            continue
        out.append(text.removeprefix(head))
        before, open_tokens = [token], []
    return tuple(out) if any(out) else ()


def json_values(value: Any) -> Any:
    """Return a value as JSON has it: NaN becomes null, an infinity its name, arrays lists, other types text."""
    if isinstance(value, dict):
        return {str(key): json_values(item) for key, item in value.items()}
    if type(value).__name__ == "NAType":
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
