"""Anole, Lumina-mGPT and Emu3: models of transformers whose vocabulary has a word for each picture code.

Sources: Chern et al. 2024, arXiv:2407.06135 (Anole); Liu et al. 2024, arXiv:2408.02657 (Lumina-mGPT); Wang et al. 2024,
arXiv:2409.18869 (Emu3). Prompts and forced tokens as in GAIR-NLP/anole at af563fa, Alpha-VLLM/Lumina-mGPT at 104abe4
and baaivision/Emu3 at f6ea9aa. Transformers' Chameleon lacks a VQ decoder and forbids picture ids, so its base model
and head run without it, and its original VQGAN paints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, Emu3ForConditionalGeneration

from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image import vqgan
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
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError

BOI, EOT, LINE = "<racm3:break>", "<reserved08706>", "<reserved08799>"
"""Begin of picture, end of turn, end of line."""
UNIT = 32
"""Pixels of Lumina-mGPT's size tokens."""
LETTERS = str.maketrans("ABCDEFGHIJ", "0123456789")
CHAMELEON_WORD, EMU3_WORD = re.compile(r"IMGIMG([A-J]+)Z"), re.compile(r"<\|visual token (\d+)\|>")
"""Words of picture codes, such as IMGIMGBADZ (letters for digits) and <|visual token 000123|>."""

PromptReader = Callable[[Net, Prompt], Reading]
Prompts = Callable[[PictureRequest, Any], tuple[PromptReader, int | None]]
"""Makes the reader of prompts, and gives the id that ends a line, or None."""


def anole(request: PictureRequest, tokenizer: Any) -> tuple[PromptReader, None]:
    """<s> text <end of turn> <begin of picture>; unconditional: <s> <begin of picture>."""
    boi, eot = token_ids(request.name, tokenizer, [BOI, EOT])
    bos = int(tokenizer.bos_token_id)

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(text_of(request.name, prompt), add_special_tokens=False).input_ids
        return shared_net(net, [bos, *words, eot, boi], [bos, boi])

    return read, None


def lumina(request: PictureRequest, tokenizer: Any) -> tuple[PromptReader, int]:
    """<s> request <end of turn> <begin of picture> <height> <width>; unconditional: the last three of them."""
    pixels = request.settings["pixels"]
    units = cells_a_side(request.name, pixels, UNIT)
    boi, eot, line, size = token_ids(request.name, tokenizer, [BOI, EOT, LINE, f"<reserved{8800 + units:05d}>"])
    bos = int(tokenizer.bos_token_id)
    instruction = f"Generate an image of {pixels}x{pixels} according to the following prompt:\n"

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(instruction + text_of(request.name, prompt), add_special_tokens=False).input_ids
        return shared_net(net, [bos, *words, eot, boi, size, size], [boi, size, size])

    return read, line


def _load_chameleon(prompts: Prompts, request: PictureRequest) -> Model:
    model, tokenizer = read_pretrained(request, ChameleonForConditionalGeneration, ("model.vqmodel.",))
    state = components.read_state(request.name, request.components["vq"])
    return assemble_chameleon(request, model, tokenizer, state, prompts)


def assemble_chameleon(
    request: PictureRequest, model: Any, tokenizer: Any, state: dict[str, Tensor], prompts: Prompts
) -> Model:
    """Build the model from one of transformers and the tensors of the VQGAN."""
    base, config = model.model, model.config
    base.vqmodel = None  # the original tokenizer is used instead
    tied = TiedEmbeddings(base.embed_tokens.weight, model.lm_head.weight)
    net = DecoderNet(base, tied).checked(request)
    vq = vqgan.decoder(request, state)
    side = cells_a_side(request.name, request.settings["pixels"], vq.shape.factor)
    read, line = prompts(request, tokenizer)
    codes = picture_codes(request.name, config.vocabulary_map or {}, CHAMELEON_WORD, vq.shape.codes)
    return Model(
        net=net,
        context=int(config.max_position_embeddings),
        grid=Grid(side, side, eol=line),
        codes=code_table(len(tied.unembed), codes, request.device),
        read=read,
        paint=vq,
        codebook=vq.codebook.detach(),
        width=int(config.hidden_size),
        tokenizer=partial(vqgan.read, request, vq),
    )


EMU3_BOI, IMAGE, EOI = "<|image start|>", "<|image token|>", "<|image end|>"
EMU3_LINE, FRAME, EOS = "<|extra_200|>", "<|extra_201|>", "<|extra_204|>"
"""End of line, of frame, of text."""
POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


def assemble_emu3(request: PictureRequest, model: Any, tokenizer: Any) -> Model:
    """Build the model from one of transformers and its text tokenizer."""
    text, vq = model.model.text_model, model.model.vqmodel.float()
    tied = TiedEmbeddings(text.embed_tokens.weight, model.lm_head.weight)
    net = DecoderNet(text, tied).checked(request)
    side = cells_a_side(request.name, request.settings["pixels"], int(vq.spatial_scale_factor))
    special = [EMU3_BOI, IMAGE, EOI, EMU3_LINE, FRAME, EOS]
    boi, image, eoi, line, frame, eos = token_ids(request.name, tokenizer, special)
    bos = int(tokenizer.bos_token_id)

    def encode(words: str) -> list[int]:
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (words, f"{side}*{side}")]
        return [bos, *ids[0], boi, *ids[1], image]

    def read(net: Net, prompt: Prompt) -> Reading:
        return shared_net(net, encode(text_of(request.name, prompt) + POSITIVE), encode(NEGATIVE))

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq.decode(codes[None])[0]
        return pixels

    codes = picture_codes(request.name, model.config.vocabulary_map or {}, EMU3_WORD, int(vq.config.codebook_size))
    return Model(
        net=net,
        context=int(text.config.max_position_embeddings),
        grid=Grid(side, side, eol=line, tail=(frame, eoi, eos)),
        codes=code_table(len(tied.unembed), codes, request.device),
        read=read,
        paint=paint,
        codebook=vq.quantize.embedding.weight.detach(),
        width=int(text.config.hidden_size),
        tokenizer=lambda: _emu3_tokenizer(vq),
    )


def _emu3_tokenizer(vq: Any) -> vqgan.VQTokenizer:
    """Return Emu3's tokenizer, which reads a picture as a clip of equal frames that it makes one of."""

    def vectors(x: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        frames = x[:, None].expand(-1, int(vq.config.temporal_downsample_factor), -1, -1, -1)
        out: Tensor = vq.quant_conv(vq.encoder(frames).transpose(1, 2))
        return out[:, :, 0]

    def pixels(codes: Float[Tensor, "B C h w"]) -> Float[Tensor, "B 3 H W"]:
        quant = codes[:, :, None]
        video: Tensor = vq.decoder(vq.post_quant_conv(quant).transpose(1, 2), quant.transpose(1, 2))
        return video.view(len(codes), -1, 3, *video.shape[-2:])[:, 0]

    return vqgan.VQTokenizer(vq.quantize.embedding.weight, int(vq.spatial_scale_factor), False, vectors, pixels)


def picture_codes(name: str, words: Mapping[str, int], word: re.Pattern[str], count: int) -> dict[int, int]:
    """Return the code of each picture id by the ``word`` of a code, whose group is the number.

    Raises WeightsError if the vocabulary ``words`` does not name all ``count`` codes.
    """
    matches = {token: word.fullmatch(text) for text, token in words.items()}
    codes = {token: int(match[1].translate(LETTERS)) for token, match in matches.items() if match}
    if sorted(codes.values()) != list(range(count)):
        raise WeightsError(f"{name}: its vocabulary names {len(codes)} picture codes and its tokenizer has {count}")
    return codes


ANOLE = Family(partial(_load_chameleon, anole), ("model", "vq"), settings={"pixels": 512})
LUMINA = Family(partial(_load_chameleon, lumina), ("model", "vq"), settings={"pixels": 768})
EMU3 = Family(
    lambda request: assemble_emu3(request, *read_pretrained(request, Emu3ForConditionalGeneration)),
    ("model",),
    settings={"pixels": 720},
)
