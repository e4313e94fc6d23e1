"""SimpleAR: a Qwen2 decoder. The ids after the text ids are codes of the Cosmos video tokenizer, one frame each.

Source: Wang et al. 2025, arXiv:2504.11455; prompts as in wdrink/SimpleAR at d56b6e5, ``generate.py``. The
tokenizer's decoder is NVIDIA's TorchScript file, which takes ids [1, 1, h, w] to pixels [1, 3, 1, H, W] of -1 to 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

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
from stridebench.harness.backbones.image.published.transformers_decoder import read_config, read_pretrained
from stridebench.harness.backbones.slots.fused_llama import forward_of
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError

BEGIN, BOI = "<|t2i|>", "<|soi|>"
POSITIVE = "A highly realistic image of "
NEGATIVE = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, "
    "bad eyes, bad limbs, distortion"
)
LEVELS = (8, 8, 8, 5, 5, 5)
"""Steps of each of a code's six numbers: 64,000 codes."""
FACTOR = 16


def _load_simplear(request: PictureRequest) -> Model:
    folder = request.components["model"]
    model = read_pretrained(request, folder, Qwen2ForCausalLM, read_config(request, folder, Qwen2Config))
    return assemble(request, model, transformers_models.read_tokenizer(folder))


def assemble(request: PictureRequest, model: Any, tokenizer: Any, levels: tuple[int, ...] = LEVELS) -> Model:
    """Build the model from one of transformers, its text tokenizer and the file of the picture decoder."""
    begin, boi = token_ids(request.name, tokenizer, [BEGIN, BOI])
    codebook, first = fsq(levels).to(request.device), len(tokenizer)
    vocabulary = int(model.lm_head.weight.shape[0])
    if first + len(codebook) > vocabulary:
        raise WeightsError(f"{request.name}: {first} texts and {len(codebook)} codes do not fit into {vocabulary} ids")
    cells = cells_a_side(request.name, request.settings["pixels"], FACTOR)
    vq = read_script(request, request.components["vq"])

    def encode(words: str) -> list[int]:
        return [begin, *tokenizer(words, add_special_tokens=False).input_ids, boi]

    def read(net: Net, prompt: Prompt) -> Reading:
        return shared_net(net, encode(POSITIVE + text_of(request.name, prompt)), encode(NEGATIVE))

    @torch.inference_mode()
    def paint(codes: Int[Tensor, "h w"]) -> Float[Tensor, "3 H W"]:
        pixels: Tensor = vq(codes[None, None])[0, :, 0]
        return pixels

    context = int(model.config.max_position_embeddings)
    return Model(
        net=forward_of(model),
        vocabulary=vocabulary,
        context=context,
        grid=Grid(cells, cells),
        codes=code_table(vocabulary, {first + code: code for code in range(len(codebook))}, request.device),
        read=read,
        paint=paint,
        codebook=codebook,
        width=int(model.config.hidden_size),
    )


def fsq(levels: tuple[int, ...]) -> Float[Tensor, "K 6"]:
    """The codes of finite scalar quantisation (Mentzer et al. 2023, arXiv:2309.15505), about -1 to 1, by id."""
    ids, columns, step = torch.arange(int(torch.tensor(levels).prod())), [], 1
    for level in levels:
        half = level // 2
        columns.append((ids // step % level - half) / half)
        step *= level
    return torch.stack(columns, 1)


def read_script(request: PictureRequest, path: Path) -> Any:
    """A TorchScript module, in the bf16 that it was made for.

    Raises:
        WeightsError: the file is no TorchScript.
    """
    try:
        script: Any = torch.jit.load(str(path), map_location=request.device)  # type: ignore[no-untyped-call]  # torch's own
    except (RuntimeError, ValueError, OSError) as error:
        raise WeightsError(
            f"{request.name}: {path} is no TorchScript file ({error}); fetch decoder.jit again"
        ) from error
    return script.eval().to(torch.bfloat16)


SIMPLEAR = Family(_load_simplear, ("model", "vq"), settings={"pixels": 1024})
