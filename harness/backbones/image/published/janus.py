"""Janus-Pro through transformers. Ids 0 to K - 1 are picture codes, then text ids follow. Each kind has its table.

Source: Chen et al. 2025, arXiv:2501.17811. Prompts as in deepseek-ai/Janus at 1daa72f, ``generation_inference.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import JanusConfig, JanusForConditionalGeneration

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.image.published.family import (
    Family,
    Model,
    PictureRequest,
    Reading,
    code_table,
    shared_net,
    text_of,
    token_ids,
)
from stridebench.harness.backbones.image.published.transformers_decoder import (
    DecoderNet,
    checked,
    read_config,
    read_pretrained,
)
from stridebench.harness.backbones.image.published.vqgan import VQTokenizer
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt

BOI, PAD = "<begin_of_image>", "<｜▁pad▁｜>"


def _load_janus(request: PictureRequest) -> Model:
    folder = request.components["model"]
    config = read_config(request, folder, JanusConfig)
    model = read_pretrained(request, folder, JanusForConditionalGeneration, config, ("lm_head.",))
    return assemble(request, model, transformers_models.read_tokenizer(folder))


def assemble(request: PictureRequest, model: Any, tokenizer: Any) -> Model:
    """Build the model from one of transformers and its text tokenizer."""
    base = model.model
    base.vision_model = base.aligner = None  # they read pictures
    vq = base.vqmodel.float()
    text, shapes = base.language_model, vq.config
    count, words = int(shapes.num_embeddings), int(text.embed_tokens.weight.shape[0])
    with torch.inference_mode():
        cells = base.generation_aligner(base.generation_embeddings.weight)
    tied = _tied(base.generation_head, torch.cat([cells, text.embed_tokens.weight]))
    text.embed_tokens = None  # its rows are in the table

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

    def tokenizer_of_pictures() -> VQTokenizer:
        book = functional.normalize(vq.quantize.embedding.weight.detach(), dim=-1)
        factor = 2 ** (len(shapes.channel_multiplier) - 1)
        return VQTokenizer(
            book, factor, True, lambda x: vq.quant_conv(vq.encoder(x)), lambda v: vq.decoder(vq.post_quant_conv(v))
        )

    return Model(
        net=checked(request.name, DecoderNet(text, tied, head), request.device, request.dtype),
        vocabulary=count + words,
        context=int(text.config.max_position_embeddings),
        grid=Grid(int(shapes.num_patches), int(shapes.num_patches)),
        codes=code_table(count + words, dict(enumerate(range(count))), request.device),
        read=read,
        paint=paint,
        codebook=functional.normalize(vq.quantize.embedding.weight.detach(), dim=-1),
        width=int(text.config.hidden_size),
        tokenizer=tokenizer_of_pictures,
    )


def _tied(head: Any, embed: Float[Tensor, "V E"]) -> TiedEmbeddings:
    """The head as products: its bias is the last column, and ids of texts have logit 0."""

    def lift(hidden: Float[Tensor, "*B E"]) -> Float[Tensor, "*B F"]:
        return functional.pad(head.activation_fn(head.proj_out(hidden)), (0, 1), value=1.0)

    products = torch.cat([head.vision_head.weight, head.vision_head.bias[:, None]], 1)
    return TiedEmbeddings(embed, functional.pad(products, (0, 0, 0, len(embed) - len(products))), lift)


JANUS = Family(_load_janus, ("model",))
