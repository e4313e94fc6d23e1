"""LlamaGen: class-conditional and captioned models, from the published checkpoints.

Source: Sun et al. 2024, arXiv:2406.06525; run as in FoundationVision/LlamaGen at ce98ec4, ``autoregressive/sample``.
Ids behind the codes are those of prompts: in c2i one for each class, in t2i one for all caption vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image import vqgan
from stridebench.harness.backbones.image.llamagen_modules import (
    GPT,
    SIZES,
    LlamaGenNet,
    LlamaGenShape,
    published,
    vocabulary,
)
from stridebench.harness.backbones.image.published import (
    Family,
    Model,
    PictureRequest,
    Reading,
    cells_a_side,
    code_table,
)
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError

SPARE = 512
"""Entries that fit after prompt and picture: the nodes of a last tree."""

Captions = Callable[[str], Float[Tensor, "P C"]]


def _load_llamagen(kind: str, request: PictureRequest) -> Model:
    state = components.read_state(request.name, request.components["gpt"])
    vq = vqgan.decoder(request, components.read_state(request.name, request.components["vq"]), normalised=True)
    shape = shape_of(request, kind, vq)
    captions = t5(request, request.components["text"], shape.prompt) if "text" in request.components else None
    return assemble(request, shape, state, vq, captions)


def shape_of(request: PictureRequest, kind: str, vq: vqgan.VQDecoder) -> LlamaGenShape:
    """Return the shape of a preset's net and pixels, or raise UsageError if the net is unknown."""
    size = str(request.settings["net"])
    if size not in SIZES:
        raise UsageError(f"{request.name}: net is {size!r}; choose one of {', '.join(SIZES)}")
    return published(kind, size, cells_a_side(request.name, request.settings["pixels"], vq.shape.factor))


def assemble(
    request: PictureRequest,
    shape: LlamaGenShape,
    state: dict[str, Tensor],
    vq: vqgan.VQDecoder,
    captions: Captions | None = None,
) -> Model:
    """Build the model from the tensors of a checkpoint, the picture decoder and the encoder of captions."""
    gpt = fit(request, shape, state)
    if shape.codes != vq.shape.codes:
        raise WeightsError(f"{request.name}: the model has {shape.codes} codes and its tokenizer {vq.shape.codes}")

    def read(net: Net, prompt: Prompt) -> Reading:
        if shape.kind == "c2i":
            condition = _classes(request, shape, prompt)
            ids, other = (shape.codes + condition.cpu()).tolist(), shape.codes + shape.prompt
        else:
            condition = _caption(request, shape, prompt, captions)
            ids, other = [shape.codes] * len(condition), shape.codes
        return bound(net, gpt, condition, ids, [other] * len(ids))

    return model_of(request, gpt, vq, read)


def model_of(request: PictureRequest, gpt: GPT, vq: vqgan.VQDecoder, read: Callable[[Net, Prompt], Reading]) -> Model:
    """Build the model of a net, its picture decoder and its reader of prompts."""
    shape = gpt.shape
    return Model(
        net=LlamaGenNet(gpt),
        context=(1 if shape.kind == "c2i" else shape.prompt) + shape.side**2 + SPARE,
        grid=Grid(shape.side, shape.side),
        codes=code_table(vocabulary(shape), dict(enumerate(range(shape.codes))), request.device),
        read=read,
        paint=vq,
        codebook=vq.codebook.detach(),
        width=shape.width,
        tokenizer=partial(vqgan.read, request, vq),
    )


def fit(request: PictureRequest, shape: LlamaGenShape, state: dict[str, Tensor]) -> GPT:
    """Return the module with the tensors of a checkpoint."""
    with torch.device("meta"):
        gpt = GPT(shape)
    gpt = gpt.to_empty(device=request.device).to(request.dtype)
    components.fill(request.name, request.components["gpt"], gpt, state, unused=("freqs_cis",))
    return gpt.eval().requires_grad_(False)


def bound(net: Net, gpt: GPT, condition: Tensor, ids: list[int], other: list[int]) -> Reading:
    """Return a reading whose branches follow different vectors: those of the condition, and those of no condition."""
    assert isinstance(net, LlamaGenNet), "the net is that of `model_of`, or some of its layers"
    conditional, unconditional = (net.bind(gpt.prompt(vectors, len(ids))) for vectors in (condition, None))
    return Reading(tuple(ids), tuple(other), conditional, unconditional)


def _classes(request: PictureRequest, shape: LlamaGenShape, prompt: Prompt) -> Tensor:
    """Return the class [1] that the text of a prompt begins with: "207", "class 207" or "207 golden retriever"."""
    number = re.match(r"\s*(?:class\s+)?(\d+)\b", prompt.text or "")
    if number is None or int(number[1]) >= shape.prompt:
        raise UsageError(
            f"{request.name}: prompt {prompt.id!r} is {prompt.text!r}; this model draws a class: write its number, "
            f"0 to {shape.prompt - 1}, first"
        )
    return torch.tensor([int(number[1])], device=request.device)


def _caption(
    request: PictureRequest, shape: LlamaGenShape, prompt: Prompt, captions: Captions | None
) -> Float[Tensor, "P C"]:
    """Return the vectors of a caption: those of the condition, without empty ones in front, or the encoded text."""
    if prompt.condition is None:
        if captions is None or prompt.text is None:
            raise UsageError(
                f"{request.name}: prompt {prompt.id!r} needs a text and the preset a part `text`, the folder of a T5 "
                f"encoder; or a condition [n, {shape.features}] with its vectors"
            )
        return captions(prompt.text)
    rows = np.asarray(prompt.condition, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != shape.features or not 0 < len(rows) <= shape.prompt:
        raise UsageError(
            f"{request.name}: prompt {prompt.id!r} has a condition {list(rows.shape)}; it must be "
            f"[n, {shape.features}] with n from 1 to {shape.prompt}"
        )
    vectors = torch.from_numpy(rows[rows.any(1)] if rows.any() else rows[-1:])
    return vectors.to(request.device)


def t5(request: PictureRequest, folder: Path, longest: int) -> Captions:
    """Return the encoder of captions: T5, of lower-case text, cut to the longest prompt.

    The published clean-up of web text (links, mark-up, file names) is left out: prompts of benchmarks have none.
    """
    from transformers import T5EncoderModel

    tokenizer: Any = transformers_models.read_tokenizer(folder)
    if tokenizer is None:
        raise WeightsError(f"{request.name}: {folder} lacks a tokenizer; fetch the whole folder of the T5 encoder")
    model = transformers_models.read_whole(request.name, folder, T5EncoderModel, dtype=request.dtype)
    model = model.to(request.device).eval().requires_grad_(False)

    @torch.inference_mode()
    def encode(text: str) -> Float[Tensor, "P C"]:
        words = " ".join(text.lower().split())
        ids = tokenizer(words, max_length=longest, truncation=True, return_tensors="pt").input_ids
        hidden: Tensor = model(ids.to(request.device)).last_hidden_state[0]
        return hidden

    return encode


C2I = Family(partial(_load_llamagen, "c2i"), ("gpt", "vq"), settings={"net": "L", "pixels": 384})
T2I = Family(partial(_load_llamagen, "t2i"), ("gpt", "vq"), optional=("text",), settings={"net": "XL", "pixels": 512})
