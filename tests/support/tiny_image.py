"""Picture models of the real architectures with random weights, small enough to draw with in a test."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from stridebench.harness.backbones.base import Identity
from stridebench.harness.backbones.image import llamagen as llamagen_family
from stridebench.harness.backbones.image import multimodal, vqgan
from stridebench.harness.backbones.image import tar as tar_family
from stridebench.harness.backbones.image.llamagen_modules import LlamaGenShape
from stridebench.harness.backbones.image.published import Model, PictureRequest, RealImage, capabilities
from stridebench.harness.backbones.tiny.pictures import (
    CODES,
    chameleon_parts,
    emu3_parts,
    gpt_state,
    janus_parts,
    save_painter,
    simplear_parts,
    vq_state,
)
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.task import Prompt

PICTURE_REQUIREMENTS = {
    Requirement.TREE_MASK,
    Requirement.DRAFTER,
    Requirement.HIDDEN,
    Requirement.GRID,
    Requirement.CODEBOOK,
    Requirement.ANY_ORDER,
}
PROMPT = Prompt("p", text="a red fox")


@dataclass
class Tiny:
    """A backbone, and the model of transformers behind it where there is one."""

    backbone: RealImage
    prompt: Prompt
    origin: Any = None
    tokenizer: Any = None


def request(settings: dict[str, Any], **parts: Path) -> PictureRequest:
    """What a family loads from, in torch's default type on the CPU."""
    named = {key: Path(f"{key}.pt") for key in ("model", "vq", "gpt", "tok", "text")}
    return PictureRequest("tiny", {**named, **parts}, settings, torch.get_default_dtype(), "cpu")


def backbone(model: Model, guidance: float) -> RealImage:
    """The adapter around a model."""
    dtype = "fp64" if torch.get_default_dtype() == torch.float64 else "fp32"
    identity = Identity("tiny", dtype, "cpu", capabilities(model, guidance), "0" * 64)
    return RealImage(identity, model)


def chameleon(guidance: float, lines: bool) -> Tiny:
    model, words = chameleon_parts(lines)
    prompts = multimodal.lumina if lines else multimodal.anole
    settings = {"pixels": 32 if lines else 8}
    state = vq_state(True, levels=4 if lines else 2)
    pictures = multimodal.assemble_chameleon(request(settings), model, words, state, prompts)
    return Tiny(backbone(pictures, guidance), PROMPT, model, words)


def emu3(guidance: float) -> Tiny:
    model, words = emu3_parts()
    return Tiny(
        backbone(multimodal.assemble_emu3(request({"pixels": 8}), model, words), guidance), PROMPT, model, words
    )


def janus(guidance: float) -> Tiny:
    model, words = janus_parts()
    origin = copy.deepcopy(model)
    return Tiny(backbone(multimodal.assemble_janus(request({}), model, words), guidance), PROMPT, origin, words)


def llamagen(guidance: float, kind: str) -> Tiny:
    shape = LlamaGenShape(kind, 3, 4, 32, 4, codes=CODES, prompt=10, features=12, mlp=48)
    vq = vqgan.decoder(request({}), vq_state(False), normalised=True)
    if kind == "tar":
        settings = {"length": 81}
        shape = LlamaGenShape(kind, 3, 4, 32, 4, codes=CODES, prompt=81, features=12, mlp=48)
        front = tar_family.TarFront(None, lambda codes: torch.sin(torch.arange(12) * (1.0 + codes[:, None])))
        pictures = tar_family.assemble(request(settings), shape, gpt_state(shape), vq, front)
        return Tiny(backbone(pictures, guidance), Prompt("p", condition=np.arange(81)))
    pictures = llamagen_family.assemble(request({}), shape, gpt_state(shape), vq)
    if kind == "c2i":
        return Tiny(backbone(pictures, guidance), Prompt("p", text="class 7"))
    features = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
    features[:2] = 0  # the padding that stands in front
    return Tiny(backbone(pictures, guidance), Prompt("p", condition=features))


def simplear(guidance: float, folder: Path) -> Tiny:
    model, words = simplear_parts(CODES)
    path = folder / "decoder.jit"
    save_painter(path)
    origin = Qwen2ForCausalLM(model.config).eval()
    origin.load_state_dict(model.state_dict())
    pictures = multimodal.assemble_simplear(request({"pixels": 64}, vq=path), model, words, (4, 4, 2))
    return Tiny(backbone(pictures, guidance), PROMPT, origin, words)


MAKERS: dict[str, Callable[[float, Path], Tiny]] = {
    "anole": lambda scale, folder: chameleon(scale, False),
    "lumina": lambda scale, folder: chameleon(scale, True),
    "emu3": lambda scale, folder: emu3(scale),
    "janus": lambda scale, folder: janus(scale),
    "llamagen_c2i": lambda scale, folder: llamagen(scale, "c2i"),
    "llamagen_t2i": lambda scale, folder: llamagen(scale, "t2i"),
    "simplear": simplear,
    "tar": lambda scale, folder: llamagen(scale, "tar"),
}


def in_fp64(name: str, guidance: float, folder: Path) -> Iterator[Tiny]:
    """Yield a model of MAKERS in fp64, which is torch's default type meanwhile: rounding depends on the processor."""
    torch.set_default_dtype(torch.float64)
    try:
        yield MAKERS[name](guidance, folder)
    finally:
        torch.set_default_dtype(torch.float32)
