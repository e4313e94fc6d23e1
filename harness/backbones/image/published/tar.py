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
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM, Siglip2VisionConfig
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel

from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image.published import vqgan
from stridebench.harness.backbones.image.published.chameleon import decoder
from stridebench.harness.backbones.image.published.family import (
    Family,
    Model,
    PictureRequest,
    Reading,
    code_table,
    text_of,
    token_ids,
)
from stridebench.harness.backbones.image.published.llamagen import SPARE, bound, fit, shape_of
from stridebench.harness.backbones.image.published.llamagen_modules import LlamaGenNet, LlamaGenShape, vocabulary
from stridebench.harness.backbones.image.published.transformers_decoder import read_config, read_pretrained
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError

# TA-Tok's decoder: from Tar's semantic codes to the vectors that its de-tokenizer reads as a prompt.
# Source: Han et al. 2025, arXiv:2506.18898; csuhan/Tar at 47da8e1, ``tok/ta_tok.py`` and
# ``tok/ar_dtok/bottleneck.py``.


HEADS = 12
"""Of its transformer: the default of transformers' configuration."""

Feel = Callable[[Int[Tensor, " n"]], Float[Tensor, "n C"]]


class Meanings(nn.Module):
    """TA-Tok's way from codes to vectors: a projected codebook, a linear map and three layers of SigLIP 2.

    Args:
        codes: K.
        width: of a code.
        hidden: E.
        layers: of the transformer.
        inner: inner width of the transformer.
    """

    def __init__(self, codes: int, width: int, hidden: int, layers: int, inner: int) -> None:
        super().__init__()
        self.embedding, self.embedding_proj = nn.Embedding(codes, width), nn.Linear(width, width)
        self.out_linear = nn.Linear(width, width)
        config = Siglip2VisionConfig(
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            num_channels=width,
            patch_size=1,
        )
        config.vision_use_head = False
        self.decoder = Siglip2VisionModel(config)
        self.task = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden))

    @torch.inference_mode()
    def forward(self, codes: Int[Tensor, " n"], normalised: bool = True) -> Float[Tensor, "n E"]:
        """Vectors of a square of codes."""
        vectors = self.embedding_proj(self.embedding(codes))
        vectors = self.out_linear(functional.normalize(vectors, dim=-1) if normalised else vectors)
        edge = round(len(codes) ** 0.5)
        ones = torch.ones(1, len(codes), dtype=torch.int, device=codes.device)
        shapes = torch.tensor([[edge, edge]], device=codes.device)
        hidden = self.decoder(vectors[None], ones, shapes).last_hidden_state[0]
        vectors_of_codes: Tensor = self.task(hidden)
        return vectors_of_codes


def own_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `Meanings` needs of TA-Tok's file, under its names."""
    renamed = (
        ("bottleneck.regularizer.embedding.", "embedding."),
        ("bottleneck.regularizer.embedding_proj.", "embedding_proj."),
        ("bottleneck.out_linear.", "out_linear."),
        ("decoder.", "decoder."),
        ("decode_task_layer.", "task."),
    )
    renamed_state: dict[str, Tensor] = {}
    for there, here in renamed:
        renamed_state |= {here + key[len(there) :]: value for key, value in state.items() if key.startswith(there)}
    plain = {key.replace("decoder.vision_model.", "decoder."): value for key, value in renamed_state.items()}
    return {key: value for key, value in plain.items() if not key.startswith("decoder.head.")}


def meanings(request: PictureRequest, state: dict[str, Tensor]) -> Feel:
    """TA-Tok's decoder with the tensors of its file; sizes follow from the tensors.

    Raises:
        WeightsError: the file is not of TA-Tok.
    """
    own = own_names(state)
    try:
        codes, width = own["embedding.weight"].shape
        layers = 1 + max(int(key.split(".")[3]) for key in own if key.startswith("decoder.encoder.layers."))
        inner = int(own["decoder.encoder.layers.0.mlp.fc1.bias"].shape[0])
        module = Meanings(codes, width, own["task.0.bias"].shape[0], layers, inner)
    except (KeyError, ValueError) as error:
        raise WeightsError(
            f"{request.name}: {request.components['tok']} is no TA-Tok file; it lacks {error}"
        ) from error
    components.fill(request.name, request.components["tok"], module, own)
    normalised = bool(request.settings["normalised"])
    module = module.to(device=request.device, dtype=request.dtype).eval().requires_grad_(False)
    return lambda codes: module(codes, normalised)


LENGTHS = (729, 169, 81)
"""Semantic codes at scale 0, 1 and 2: 27, 13 and 9 a side."""
TOP_K, TOP_P = 1200, 0.95
SYSTEM = "You are a helpful assistant."

Write = Callable[[str], Int[Tensor, " n"]]


@dataclass(frozen=True, eq=False)
class TarFront:
    """What runs before the de-tokenizer: a text to codes, and codes to vectors; None where its file is absent."""

    write: Write | None
    feel: Feel | None


def _load_tar(request: PictureRequest) -> Model:
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
    return assemble(
        request, shape, state, vq, TarFront(writer(request) if "model" in request.components else None, feel)
    )


def assemble(
    request: PictureRequest, shape: LlamaGenShape, state: dict[str, Tensor], vq: Any, front: TarFront
) -> Model:
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
        tokenizer=partial(vqgan.read, request, vq),
    )


def _features(request: PictureRequest, shape: LlamaGenShape, prompt: Prompt, front: TarFront) -> Float[Tensor, "n C"]:
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


def _language_model(request: PictureRequest, folder: Path) -> Any:
    key = (folder.resolve(), request.dtype, request.device)
    model = LOADED.get(key)
    if model is None:
        model = read_pretrained(request, folder, Qwen2ForCausalLM, read_config(request, folder, Qwen2Config))
        LOADED[key] = model
    return model


def writer(request: PictureRequest) -> Write:
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
