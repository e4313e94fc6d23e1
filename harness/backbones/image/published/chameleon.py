"""Anole and Lumina-mGPT: Chameleon's decoder through transformers, its pictures through its original VQGAN.

Sources: Chern et al. 2024, arXiv:2407.06135 (Anole); Liu et al. 2024, arXiv:2408.02657 (Lumina-mGPT). Prompts as in
GAIR-NLP/anole at af563fa and Alpha-VLLM/Lumina-mGPT at 104abe4. Transformers' own class has no VQ decoder and forbids
picture ids, so its base model and head are run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration

from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image.published import vqgan
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
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError

BOI, EOT, LINE = "<racm3:break>", "<reserved08706>", "<reserved08799>"
"""Begin of picture, end of turn, end of line."""
UNIT = 32
"""Pixels of Lumina-mGPT's size tokens."""
DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")

PromptReader = Callable[[Net, Prompt], Reading]


def _anole(request: PictureRequest, tokenizer: Any, pixels: int) -> tuple[PromptReader, int | None]:
    """<s> text <end of turn> <begin of picture>; unconditional: <s> <begin of picture>. No ends of lines."""
    boi, eot = token_ids(request.name, tokenizer, [BOI, EOT])
    bos = int(tokenizer.bos_token_id)

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(text_of(request.name, prompt), add_special_tokens=False).input_ids
        return shared_net(net, [bos, *words, eot, boi], [bos, boi])

    return read, None


def _lumina(request: PictureRequest, tokenizer: Any, pixels: int) -> tuple[PromptReader, int | None]:
    """<s> request <end of turn> <begin of picture> <height> <width>; unconditional: the last three of them."""
    units = cells_a_side(request.name, pixels, UNIT)
    boi, eot, line, size = token_ids(request.name, tokenizer, [BOI, EOT, LINE, f"<reserved{8800 + units:05d}>"])
    bos = int(tokenizer.bos_token_id)
    instruction = f"Generate an image of {pixels}x{pixels} according to the following prompt:\n"

    def read(net: Net, prompt: Prompt) -> Reading:
        words = tokenizer(instruction + text_of(request.name, prompt), add_special_tokens=False).input_ids
        return shared_net(net, [bos, *words, eot, boi, size, size], [boi, size, size])

    return read, line


def _loader(
    prompts: Callable[[PictureRequest, Any, int], tuple[PromptReader, int | None]],
) -> Callable[[PictureRequest], Model]:
    def load(request: PictureRequest) -> Model:
        folder = request.components["model"]
        config = read_config(request, folder, ChameleonConfig)
        tokenizer = transformers_models.read_tokenizer(folder)
        if config.vocabulary_map is None and tokenizer is not None:
            config.vocabulary_map = tokenizer.get_vocab()
        model = read_pretrained(request, folder, ChameleonForConditionalGeneration, config, ("model.vqmodel.",))
        state = components.read_state(request.name, request.components["vq"])
        return assemble(request, model, tokenizer, state, prompts)

    return load


def assemble(
    request: PictureRequest,
    model: Any,
    tokenizer: Any,
    state: dict[str, Tensor],
    prompts: Callable[[PictureRequest, Any, int], tuple[PromptReader, int | None]],
) -> Model:
    """Build the model from one of transformers and the tensors of the VQGAN."""
    base, config = model.model, model.config
    base.vqmodel = None  # the original tokenizer is used instead
    tied = TiedEmbeddings(base.embed_tokens.weight, model.lm_head.weight)
    net = checked(request.name, DecoderNet(base, tied), request.device, request.dtype)
    vq = decoder(request, state)
    pixels = request.settings["pixels"]
    cells = cells_a_side(request.name, pixels, vq.shape.factor)
    read, line = prompts(request, tokenizer, pixels)
    codes = picture_codes(request.name, config.vocabulary_map or {}, vq.shape.codes)
    return Model(
        net=net,
        vocabulary=int(model.lm_head.weight.shape[0]),
        context=int(config.max_position_embeddings),
        grid=Grid(cells, cells, eol=line),
        codes=code_table(int(model.lm_head.weight.shape[0]), codes, request.device),
        read=read,
        paint=vq,
        codebook=vq.codebook.detach(),
        width=int(config.hidden_size),
        tokenizer=partial(vqgan.read, request, vq),
    )


def decoder(
    request: PictureRequest, state: dict[str, Tensor], part: str = "vq", normalised: bool = False
) -> vqgan.VQDecoder:
    """The picture decoder of a VQGAN file, in fp32."""
    own = vqgan.own_names(state)
    try:
        vq = vqgan.VQDecoder(vqgan.shape_of(own, normalised))
    except (KeyError, ValueError) as error:
        raise WeightsError(
            f"{request.name}: {request.components[part]} is no VQGAN tokenizer; it lacks {error}"
        ) from error
    components.fill(request.name, request.components[part], vq, own)
    return vq.to(request.device).eval().requires_grad_(False)


def picture_codes(name: str, words: dict[str, int], count: int) -> dict[int, int]:
    """The code of each picture id, from words such as IMGIMGBADZ: letters A to J are the digits.

    Raises:
        WeightsError: the vocabulary does not name all ``count`` codes.
    """
    codes = {
        token: int(word[6:-1].translate(DIGITS))
        for word, token in words.items()
        if word.startswith("IMGIMG") and word.endswith("Z")
    }
    if sorted(codes.values()) != list(range(count)):
        raise WeightsError(f"{name}: its vocabulary names {len(codes)} picture codes and the VQGAN has {count}")
    return codes


PROMPTS: dict[str, Callable[[PictureRequest, Any, int], tuple[PromptReader, int | None]]] = {
    "anole": _anole,
    "lumina": _lumina,
}
ANOLE = Family(_loader(_anole), ("model", "vq"), settings={"pixels": 512})
LUMINA = Family(_loader(_lumina), ("model", "vq"), settings={"pixels": 768})
