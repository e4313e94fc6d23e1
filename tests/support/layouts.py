"""Key lists of published checkpoints."""

from __future__ import annotations

from pathlib import Path

LAYOUTS = Path(__file__).parents[1] / "harness" / "backbones" / "layouts"


def layout(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors by key."""
    lines = (LAYOUTS / f"{name}.tsv").read_text().splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return {key: tuple(int(size) for size in shape.split(",") if size) for key, shape in pairs}
