"""Tar: a language model writes 729, 169 or 81 semantic codes, its de-tokenizer draws the picture that they describe.

Source: Han et al. 2025, arXiv:2506.18898; run as in csuhan/Tar at 47da8e1, ``t2i_inference.py``. The backbone is the
de-tokenizer (AR-DTok). The language model and the tokenizer TA-Tok run when a prompt is opened, so their time is not
part of the decode.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image.published import vqgan_encoder
from stridebench.harness.backbones.image.published.assembly import code_table, text_of, token_ids
from stridebench.harness.backbones.image.published.chameleon import decoder
from stridebench.harness.backbones.image.published.family import Family, Model, Reading, Request
from stridebench.harness.backbones.image.published.llamagen import SPARE, bound, fit, shape_of
from stridebench.harness.backbones.image.published.llamagen_modules import Shape, vocabulary
from stridebench.harness.backbones.image.published.llamagen_net import LlamaGenNet
from stridebench.harness.backbones.image.published.tatok import Feel, meanings
from stridebench.harness.backbones.image.published.transformers_decoder import read_config, read_pretrained
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError

LENGTHS = (729, 169, 81)
"""Semantic codes at scale 0, 1 and 2: 27, 13 and 9 a side."""
TOP_K, TOP_P = 1200, 0.95
SYSTEM = "You are a helpful assistant."

Write = Callable[[str], Int[Tensor, " n"]]


@dataclass(frozen=True, eq=False)
class Front:
    """What runs before the de-tokenizer: a text to codes, and codes to vectors; None where its file is absent."""

    write: Write | None
    feel: Feel | None


def _load_tar(request: Request) -> Model:
    state = components.read_state(request.name, request.components["gpt"])
    vq = decoder(request, components.read_state(request.name, request.components["vq"]), normalised=True)
    shape = shape_of(request, "tar", vq)
    if "abs_pe" in state:
        shape = replace(shape, prompt=int(state["abs_pe"].shape[1]) - shape.side**2 + 1)
    feel = (
        meanings(request, components.read_state(request.name, request.components["tok"]))
        if "tok" in request.components
        else None
    )
    return assemble(request, shape, state, vq, Front(writer(request) if "model" in request.components else None, feel))


def assemble(request: Request, shape: Shape, state: dict[str, Tensor], vq: Any, front: Front) -> Model:
    """Build the model from a checkpoint's tensors, the picture decoder and what runs before it."""
    length = request.settings["length"]
    if length not in LENGTHS or length > shape.prompt:
        raise UsageError(f"{request.name}: length is {length!r}; choose one of {', '.join(map(str, LENGTHS))}")
    gpt = fit(request, shape, state)

    def read(net: Net, prompt: Prompt) -> Reading:
        features = _features(request, shape, prompt, front)
        ids = [shape.codes] * len(features)
        return bound(net, gpt, features, ids, ids)

    count = vocabulary(shape)
    return Model(
        net=LlamaGenNet(gpt),
        vocabulary=count,
        context=shape.prompt + shape.side**2 + SPARE,
        grid=Grid(shape.side, shape.side),
        codes=code_table(count, dict(enumerate(range(shape.codes))), request.device),
        read=read,
        paint=vq,
        codebook=vq.codebook.detach(),
        width=shape.width,
        tokenizer=partial(vqgan_encoder.read, request, vq),
    )


def _features(request: Request, shape: Shape, prompt: Prompt, front: Front) -> Float[Tensor, "n C"]:
    """Vectors of a prompt: its condition, or those of codes, which are its condition or the language model's text."""
    length, rows = int(request.settings["length"]), None
    if prompt.condition is not None:
        rows = torch.from_numpy(np.ascontiguousarray(prompt.condition)).to(request.device)
    elif front.write is not None:
        rows = front.write(text_of(request.name, prompt))
    if rows is not None and rows.is_floating_point() and tuple(rows.shape) == (length, shape.features):
        return rows
    are_codes = rows is not None and not rows.is_floating_point() and tuple(rows.shape) == (length,)
    if rows is not None and are_codes and front.feel is not None:
        return front.feel(rows.long())
    described = "no condition" if prompt.condition is None else f"a condition {list(np.shape(prompt.condition))}"
    raise UsageError(
        f"{request.name}: prompt {prompt.id!r} has {described}; give vectors [{length}, {shape.features}], or "
        f"codes [{length}] with the preset's part `tok`, or a text with its parts `tok` and `model`"
    )


LOADED: WeakValueDictionary[tuple[Path, torch.dtype, str], Any] = WeakValueDictionary()
"""Language models in use: Tar's scales share one."""


def _language_model(request: Request, folder: Path) -> Any:
    key = (folder.resolve(), request.dtype, request.device)
    model = LOADED.get(key)
    if model is None:
        model = read_pretrained(request, folder, Qwen2ForCausalLM, read_config(request, folder, Qwen2Config))
        LOADED[key] = model
    return model


def writer(request: Request) -> Write:
    """The language model: codes of a text, filled up with 0, sampled as published (T 1, top-k 1200, top-p 0.95).

    The text decides the seed, so every method gets the same codes.
    """
    folder, length = request.components["model"], int(request.settings["length"])
    model = _language_model(request, folder)
    tokenizer = transformers_models.read_tokenizer(folder)
    scale = token_ids(request.name, tokenizer, ["<im_start>", f"<S{LENGTHS.index(length)}>"])
    matches = {token: re.fullmatch(r"<I(\d+)>", word) for word, token in tokenizer.get_vocab().items()}
    codes = {token: int(match[1]) for token, match in matches.items() if match}

    @torch.inference_mode()
    def write(text: str) -> Int[Tensor, " n"]:
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        chat = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([[*tokenizer(chat, add_special_tokens=False).input_ids, *scale]], device=request.device)
        with torch.random.fork_rng(devices=[] if request.device == "cpu" else [request.device]):
            torch.manual_seed(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))
            out = model.generate(ids, max_new_tokens=length, do_sample=True, temperature=1.0, top_p=TOP_P, top_k=TOP_K)
        written = [codes[token] for token in out[0, ids.shape[1] :].tolist() if token in codes][:length]
        return torch.tensor(written + [0] * (length - len(written)), device=request.device)

    return write


SETTINGS = {"net": "LP", "pixels": 512, "length": 729, "normalised": True}
TAR = Family(_load_tar, ("gpt", "vq"), optional=("tok", "model"), settings=SETTINGS)
