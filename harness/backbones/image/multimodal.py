"""Multimodal models of transformers: Anole, Lumina-mGPT and Emu3, Janus-Pro, and SimpleAR.

The first three have a word for each picture code in their vocabulary. Sources: Chern et al. 2024, arXiv:2407.06135
(Anole); Liu et al. 2024, arXiv:2408.02657 (Lumina-mGPT); Wang et al. 2024, arXiv:2409.18869 (Emu3). Prompts and forced
tokens as in GAIR-NLP/anole at af563fa, Alpha-VLLM/Lumina-mGPT at 104abe4 and baaivision/Emu3 at f6ea9aa. Transformers'
Chameleon lacks a VQ decoder and forbids picture ids, so its base model and head run alone, and its VQGAN paints.

The picture codes of Janus-Pro are ids 0 to K - 1, then text ids follow, and each kind has its table. Source: Chen et
al. 2025, arXiv:2501.17811; prompts as in deepseek-ai/Janus at 1daa72f, ``generation_inference.py``.

SimpleAR is a Qwen2 decoder. The ids after the text ids are codes of the Cosmos video tokenizer, one frame each. Source:
Wang et al. 2025, arXiv:2504.11455; prompts as in wdrink/SimpleAR at d56b6e5, ``generate.py``. The decoder of the
tokenizer is NVIDIA's TorchScript file, which takes ids [1, 1, h, w] to pixels [1, 3, 1, H, W] of -1 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import (
    ChameleonForConditionalGeneration,
    Emu3ForConditionalGeneration,
    JanusForConditionalGeneration,
    Qwen2ForCausalLM,
)

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
from stridebench.harness.backbones.slots.fused_llama import forward_of
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


EMU3_SPECIAL = (
    "<|image start|>",
    "<|image token|>",
    "<|image end|>",
    "<|extra_200|>",
    "<|extra_201|>",
    "<|extra_204|>",
)
"""Begin of picture, picture, ends of picture, line, frame and text."""
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
    boi, image, eoi, line, frame, eos = token_ids(request.name, tokenizer, EMU3_SPECIAL)
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

JANUS_BOI, JANUS_PAD = "<begin_of_image>", "<｜▁pad▁｜>"


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

    boi, pad = token_ids(request.name, tokenizer, [JANUS_BOI, JANUS_PAD])

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(f"<|User|>: {text_of(request.name, prompt).strip()}\n\n<|Assistant|>:").input_ids
        ids = [*words, boi]
        return shared_net(net, [count + i for i in ids], [count + i for i in (ids[0], *[pad] * (len(ids) - 2), boi)])

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq.decode(codes.reshape(1, -1))[0]
        return pixels

    def picture_tokenizer() -> vqgan.VQTokenizer:
        factor = 2 ** (len(shapes.channel_multiplier) - 1)
        return vqgan.VQTokenizer(
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


SIMPLEAR_BEGIN, SIMPLEAR_BOI = "<|t2i|>", "<|soi|>"
SIMPLEAR_POSITIVE = "A highly realistic image of "
SIMPLEAR_NEGATIVE = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, "
    "bad eyes, bad limbs, distortion"
)
LEVELS = (8, 8, 8, 5, 5, 5)
"""Steps of each of a code's six numbers: 64,000 codes."""
FACTOR = 16


def assemble_simplear(request: PictureRequest, model: Any, tokenizer: Any, levels: tuple[int, ...] = LEVELS) -> Model:
    """Build the model from one of transformers, its text tokenizer and the file of the picture decoder."""
    begin, boi = token_ids(request.name, tokenizer, [SIMPLEAR_BEGIN, SIMPLEAR_BOI])
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
        return shared_net(net, encode(SIMPLEAR_POSITIVE + text_of(request.name, prompt)), encode(SIMPLEAR_NEGATIVE))

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
