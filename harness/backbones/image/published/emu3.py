"""Emu3-Gen through transformers, its tokenizer of pictures included.

Source: Wang et al. 2024, arXiv:2409.18869. Prompts and forced tokens as in baaivision/Emu3 at f6ea9aa.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Emu3Config, Emu3ForConditionalGeneration

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.image.published.family import (
    Family,
    Model,
    PictureRequest,
    Reading,
    cells_a_side,
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
from stridebench.harness.errors import WeightsError

BOI, IMAGE, EOI = "<|image start|>", "<|image token|>", "<|image end|>"
LINE, FRAME, EOS = "<|extra_200|>", "<|extra_201|>", "<|extra_204|>"
"""End of line, of frame, of text."""
POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


def _load_emu3(request: PictureRequest) -> Model:
    folder = request.components["model"]
    config, tokenizer = read_config(request, folder, Emu3Config), transformers_models.read_tokenizer(folder)
    if config.vocabulary_map is None and tokenizer is not None:
        config.vocabulary_map = tokenizer.get_vocab()
    return assemble(request, read_pretrained(request, folder, Emu3ForConditionalGeneration, config), tokenizer)


def assemble(request: PictureRequest, model: Any, tokenizer: Any) -> Model:
    """Build the model from one of transformers and its text tokenizer."""
    text, vq = model.model.text_model, model.model.vqmodel.float()
    tied = TiedEmbeddings(text.embed_tokens.weight, model.lm_head.weight)
    net = checked(request.name, DecoderNet(text, tied), request.device, request.dtype)
    cells = cells_a_side(request.name, request.settings["pixels"], int(vq.spatial_scale_factor))
    boi, image, eoi, line, frame, eos = token_ids(request.name, tokenizer, [BOI, IMAGE, EOI, LINE, FRAME, EOS])
    bos = int(tokenizer.bos_token_id)

    def encode(words: str) -> list[int]:
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (words, f"{cells}*{cells}")]
        return [bos, *ids[0], boi, *ids[1], image]

    def read(net: Net, prompt: Prompt) -> Reading:
        return shared_net(net, encode(text_of(request.name, prompt) + POSITIVE), encode(NEGATIVE))

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq.decode(codes[None])[0]
        return pixels

    codes = picture_codes(request.name, model.config.vocabulary_map or {}, int(vq.config.codebook_size))
    vocabulary = int(model.lm_head.weight.shape[0])
    return Model(
        net=net,
        vocabulary=vocabulary,
        context=int(text.config.max_position_embeddings),
        grid=Grid(cells, cells, eol=line, tail=(frame, eoi, eos)),
        codes=code_table(vocabulary, codes, request.device),
        read=read,
        paint=paint,
        codebook=vq.quantize.embedding.weight.detach(),
        width=int(text.config.hidden_size),
        tokenizer=lambda: _tokenizer(vq),
    )


def _tokenizer(vq: Any) -> VQTokenizer:
    """Emu3's tokenizer, which reads a picture as a clip of equal frames that it makes one of."""

    def vectors(x: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        frames = x[:, None].expand(-1, int(vq.config.temporal_downsample_factor), -1, -1, -1)
        out: Tensor = vq.quant_conv(vq.encoder(frames).transpose(1, 2))
        return out[:, :, 0]

    def pixels(codes: Float[Tensor, "B C h w"]) -> Float[Tensor, "B 3 H W"]:
        quant = codes[:, :, None]
        video: Tensor = vq.decoder(vq.post_quant_conv(quant).transpose(1, 2), quant.transpose(1, 2))
        return video.view(len(codes), -1, 3, *video.shape[-2:])[:, 0]

    return VQTokenizer(vq.quantize.embedding.weight, int(vq.spatial_scale_factor), False, vectors, pixels)


def picture_codes(name: str, words: dict[str, int], count: int) -> dict[int, int]:
    """The code of each picture id, from words such as <|visual token 000123|>.

    Raises:
        WeightsError: the vocabulary does not name all ``count`` codes.
    """
    matches = {token: re.fullmatch(r"<\|visual token (\d+)\|>", word) for word, token in words.items()}
    codes = {token: int(match[1]) for token, match in matches.items() if match}
    if sorted(codes.values()) != list(range(count)):
        raise WeightsError(f"{name}: its vocabulary names {len(codes)} picture codes and its tokenizer has {count}")
    return codes


EMU3 = Family(_load_emu3, ("model",), settings={"pixels": 720})
