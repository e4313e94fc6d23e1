"""Janus-Pro and SimpleAR: models of transformers whose picture codes are a range of ids.

Janus-Pro: ids 0 to K - 1 are picture codes, then text ids follow, and each kind has its table. Source: Chen et al.
2025, arXiv:2501.17811; prompts as in deepseek-ai/Janus at 1daa72f, ``generation_inference.py``.

SimpleAR: a Qwen2 decoder. The ids after the text ids are codes of the Cosmos video tokenizer, one frame each. Source:
Wang et al. 2025, arXiv:2504.11455; prompts as in wdrink/SimpleAR at d56b6e5, ``generate.py``. The decoder of the
tokenizer is NVIDIA's TorchScript file, which takes ids [1, 1, h, w] to pixels [1, 3, 1, H, W] of -1 to 1.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import JanusForConditionalGeneration, Qwen2ForCausalLM

from stridebench.harness.backbones.image.published import (
    DecoderNet,
    Family,
    Model,
    PictureRequest,
    Reading,
    cells_a_side,
    code_table,
    read_pretrained,
    shared_net,
    text_of,
    token_ids,
)
from stridebench.harness.backbones.image.vqgan import VQTokenizer
from stridebench.harness.backbones.slots.fused_llama import forward_of
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError

BOI, PAD = "<begin_of_image>", "<｜▁pad▁｜>"


def assemble_janus(request: PictureRequest, model: Any, tokenizer: Any) -> Model:
    """Build the model from one of transformers and its text tokenizer."""
    base = model.model
    base.vision_model = base.aligner = None  # they read pictures
    vq = base.vqmodel.float()
    text, shapes = base.language_model, vq.config
    count, words = int(shapes.num_embeddings), int(text.embed_tokens.weight.shape[0])
    with torch.inference_mode():
        cells = base.generation_aligner(base.generation_embeddings.weight)
    tied = _janus_tied(base.generation_head, torch.cat([cells, text.embed_tokens.weight]))
    text.embed_tokens = None  # its rows are in the table
    book = functional.normalize(vq.quantize.embedding.weight.detach(), dim=-1)

    def head(hidden: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        return functional.pad(base.generation_head(hidden), (0, words))

    boi, pad = token_ids(request.name, tokenizer, [BOI, PAD])

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(f"<|User|>: {text_of(request.name, prompt).strip()}\n\n<|Assistant|>:").input_ids
        ids = [*words, boi]
        return shared_net(net, [count + i for i in ids], [count + i for i in (ids[0], *[pad] * (len(ids) - 2), boi)])

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq.decode(codes.reshape(1, -1))[0]
        return pixels

    def picture_tokenizer() -> VQTokenizer:
        factor = 2 ** (len(shapes.channel_multiplier) - 1)
        return VQTokenizer(
            book, factor, True, lambda x: vq.quant_conv(vq.encoder(x)), lambda v: vq.decoder(vq.post_quant_conv(v))
        )

    return Model(
        net=DecoderNet(text, tied, head).checked(request),
        context=int(text.config.max_position_embeddings),
        grid=Grid(int(shapes.num_patches), int(shapes.num_patches)),
        codes=code_table(count + words, dict(enumerate(range(count))), request.device),
        read=read,
        paint=paint,
        codebook=book,
        width=int(text.config.hidden_size),
        tokenizer=picture_tokenizer,
    )


def _janus_tied(head: Any, embed: Float[Tensor, "V E"]) -> TiedEmbeddings:
    """Return the head as products: its bias is the last column, and ids of texts have logit 0."""

    def lift(hidden: Float[Tensor, "*B E"]) -> Float[Tensor, "*B F"]:
        return functional.pad(head.activation_fn(head.proj_out(hidden)), (0, 1), value=1.0)

    products = torch.cat([head.vision_head.weight, head.vision_head.bias[:, None]], 1)
    return TiedEmbeddings(embed, functional.pad(products, (0, 0, 0, len(embed) - len(products))), lift)


BEGIN, SIMPLEAR_BOI = "<|t2i|>", "<|soi|>"
POSITIVE = "A highly realistic image of "
NEGATIVE = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, "
    "bad eyes, bad limbs, distortion"
)
LEVELS = (8, 8, 8, 5, 5, 5)
"""Steps of each of a code's six numbers: 64,000 codes."""
FACTOR = 16


def assemble_simplear(request: PictureRequest, model: Any, tokenizer: Any, levels: tuple[int, ...] = LEVELS) -> Model:
    """Build the model from one of transformers, its text tokenizer and the file of the picture decoder."""
    begin, boi = token_ids(request.name, tokenizer, [BEGIN, SIMPLEAR_BOI])
    codebook, first = fsq(levels).to(request.device), len(tokenizer)
    vocabulary = int(model.lm_head.weight.shape[0])
    if first + len(codebook) > vocabulary:
        raise WeightsError(f"{request.name}: {first} texts and {len(codebook)} codes do not fit into {vocabulary} ids")
    side = cells_a_side(request.name, request.settings["pixels"], FACTOR)
    path = request.components["vq"]
    try:
        script: Any = torch.jit.load(str(path), map_location=request.device)  # type: ignore[no-untyped-call]  # torch's
    except (RuntimeError, ValueError, OSError) as error:
        raise WeightsError(f"{request.name}: {path} is not TorchScript ({error}); fetch decoder.jit again") from error
    vq = script.eval().to(torch.bfloat16)  # it was made for this type

    def encode(words: str) -> list[int]:
        return [begin, *tokenizer(words, add_special_tokens=False).input_ids, boi]

    def read(net: Net, prompt: Prompt) -> Reading:
        return shared_net(net, encode(POSITIVE + text_of(request.name, prompt)), encode(NEGATIVE))

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq(codes[None, None])[0, :, 0]
        return pixels

    return Model(
        net=forward_of(model),
        context=int(model.config.max_position_embeddings),
        grid=Grid(side, side),
        codes=code_table(vocabulary, {first + code: code for code in range(len(codebook))}, request.device),
        read=read,
        paint=paint,
        codebook=codebook,
        width=int(model.config.hidden_size),
    )


def fsq(levels: tuple[int, ...]) -> Float[Tensor, "K 6"]:
    """Return the codes of finite scalar quantisation (Mentzer et al. 2023, arXiv:2309.15505), about -1 to 1, by id."""
    ids, columns, step = torch.arange(int(torch.tensor(levels).prod())), [], 1
    for level in levels:
        half = level // 2
        columns.append((ids // step % level - half) / half)
        step *= level
    return torch.stack(columns, 1)


JANUS = Family(
    lambda request: assemble_janus(request, *read_pretrained(request, JanusForConditionalGeneration, ("lm_head.",))),
    ("model",),
)
SIMPLEAR = Family(
    lambda request: assemble_simplear(request, *read_pretrained(request, Qwen2ForCausalLM)),
    ("model", "vq"),
    settings={"pixels": 1024},
)
