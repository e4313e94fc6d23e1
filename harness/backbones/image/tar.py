"""Tar: a language model writes 729, 169 or 81 semantic codes, its de-tokenizer draws the picture that they describe.

Source: Han et al. 2025, arXiv:2506.18898; csuhan/Tar at 47da8e1, ``t2i_inference.py``, ``tok/ta_tok.py`` and
``tok/ar_dtok/bottleneck.py``. The backbone is the de-tokenizer (AR-DTok). The language model and the tokenizer TA-Tok
run when a prompt is opened, so their time is not part of the decode.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2ForCausalLM, Siglip2VisionConfig
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel

from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image import vqgan
from stridebench.harness.backbones.image.llamagen import bound, fit, model_of, shape_of
from stridebench.harness.backbones.image.llamagen_modules import LlamaGenShape
from stridebench.harness.backbones.image.published import (
    Family,
    Model,
    PictureRequest,
    Reading,
    read_pretrained,
    text_of,
    token_ids,
)
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError

HEADS = 12
"""Of its transformer: the default of transformers' configuration."""

Feel = Callable[[Int[Tensor, " n"]], Float[Tensor, "n C"]]


class Meanings(nn.Module):
    """TA-Tok's way from codes to vectors: a projected codebook, a linear map and a transformer of SigLIP 2.

    Args:
        codes: K, each of some ``width``.
        hidden, layers, inner: sizes of the transformer.
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
        """Return the vectors of a square of codes."""
        vectors = self.embedding_proj(self.embedding(codes))
        vectors = self.out_linear(functional.normalize(vectors, dim=-1) if normalised else vectors)
        edge = round(len(codes) ** 0.5)
        ones = torch.ones(1, len(codes), dtype=torch.int, device=codes.device)
        shapes = torch.tensor([[edge, edge]], device=codes.device)
        hidden = self.decoder(vectors[None], ones, shapes).last_hidden_state[0]
        vectors_of_codes: Tensor = self.task(hidden)
        return vectors_of_codes


RENAMED = {
    "bottleneck.regularizer.embedding": "embedding",
    "bottleneck.out_linear.": "out_linear.",
    "decoder.vision_model.": "decoder.",
    "decoder.": "decoder.",
    "decode_task_layer.": "task.",
}
"""Starts of names in TA-Tok's file and in `Meanings`. All other tensors, and the decoder's head, are not used."""


def meanings(request: PictureRequest, state: dict[str, Tensor]) -> Feel:
    """Return TA-Tok's decoder with the tensors of its file, which show its sizes, or raise WeightsError."""
    starts = {key: next((start for start in RENAMED if key.startswith(start)), None) for key in state}
    own = {RENAMED[start] + key[len(start) :]: state[key] for key, start in starts.items() if start is not None}
    own = {key: value for key, value in own.items() if not key.startswith("decoder.head.")}
    path = request.components["tok"]
    try:
        codes, width = own["embedding.weight"].shape
        layers = 1 + max(int(key.split(".")[3]) for key in own if key.startswith("decoder.encoder.layers."))
        inner = int(own["decoder.encoder.layers.0.mlp.fc1.bias"].shape[0])
        module = Meanings(codes, width, own["task.0.bias"].shape[0], layers, inner)
    except (KeyError, ValueError) as error:
        raise WeightsError(f"{request.name}: {path} is not a TA-Tok file; it lacks {error}") from error
    components.fill(request.name, path, module, own)
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
    """Models before the de-tokenizer: a text to codes, and codes to vectors; each is None if its file is absent."""

    write: Write | None
    feel: Feel | None


def _load_tar(request: PictureRequest) -> Model:
    name, parts = request.name, request.components
    state = components.read_state(name, parts["gpt"])
    vq = vqgan.decoder(request, components.read_state(name, parts["vq"]), normalised=True)
    shape = shape_of(request, "tar", vq)
    if "abs_pe" in state:
        shape = replace(shape, prompt=int(state["abs_pe"].shape[1]) - shape.side**2 + 1)
    feel = meanings(request, components.read_state(name, parts["tok"])) if "tok" in parts else None
    return assemble(request, shape, state, vq, TarFront(writer(request) if "model" in parts else None, feel))


def assemble(
    request: PictureRequest, shape: LlamaGenShape, state: dict[str, Tensor], vq: vqgan.VQDecoder, front: TarFront
) -> Model:
    """Build the model from the tensors of a checkpoint, the picture decoder and the models that run before it."""
    length = request.settings["length"]
    if length not in LENGTHS or length > shape.prompt:
        raise UsageError(f"{request.name}: length is {length!r}; choose one of {', '.join(map(str, LENGTHS))}")
    gpt = fit(request, shape, state)

    def read(net: Net, prompt: Prompt) -> Reading:
        features = _features(request, shape, prompt, front)
        ids = [shape.codes] * len(features)
        return bound(net, gpt, features, ids, ids)

    return model_of(request, gpt, vq, read)


def _features(request: PictureRequest, shape: LlamaGenShape, prompt: Prompt, front: TarFront) -> Float[Tensor, "n C"]:
    """Return the vectors of a prompt: its condition, or those of the codes in its condition or written to its text."""
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


def _language_model(request: PictureRequest) -> Any:
    key = (request.components["model"].resolve(), request.dtype, request.device)
    model = LOADED.get(key)
    if model is None:
        LOADED[key] = model = read_pretrained(request, Qwen2ForCausalLM).model
    return model


def writer(request: PictureRequest) -> Write:
    """Return a writer of codes for a text, filled up with 0, sampled as published (T 1, top-k 1200, top-p 0.95).

    The text decides the seed, so every method gets the same codes.
    """
    length, model = int(request.settings["length"]), _language_model(request)
    tokenizer = transformers_models.read_tokenizer(request.components["model"])
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
