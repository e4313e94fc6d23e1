"""Picture models of the real architectures with random weights, small enough to draw with in a test."""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from harness.backbones.base import Identity
from harness.backbones.image.published import chameleon as chameleon_family
from harness.backbones.image.published import emu3 as emu3_family
from harness.backbones.image.published import janus as janus_family
from harness.backbones.image.published import llamagen as llamagen_family
from harness.backbones.image.published import simplear as simplear_family
from harness.backbones.image.published import tar as tar_family
from harness.backbones.image.published.adapter import RealImage, capabilities
from harness.backbones.image.published.family import Model, Request
from harness.backbones.image.published.llamagen_modules import GPT, Shape
from harness.backbones.image.published.vqgan import VQDecoder, VQShape
from harness.core.task import Prompt

CODES = 32
DECODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = {**DECODER, "num_key_value_heads": 2, "max_position_embeddings": 400, "initializer_range": 0.3}
PROMPT = Prompt("p", text="a red fox")


def tokenizer(special: Sequence[str], opens: bool = False) -> Any:
    """One id a character behind the special words; with `opens`, texts begin with <s>."""
    words = ["<s>", "</s>", "<unk>", *special, *string.printable]
    words_only = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    words_only.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    if opens:
        words_only.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=words_only, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    return fast


def letters(code: int) -> str:
    """Chameleon's word for a picture code."""
    return "IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) + "Z"


def vq_state(taming: bool, codes: int = CODES, levels: int = 2) -> dict[str, Tensor]:
    """The tensors of a VQ decoder, with an encoder's beside them, under published names."""
    widths = (64, *[32] * (levels - 1))
    shape = VQShape(codes, 8, 32, widths, 2, attends=not taming, normalised=not taming)
    state = {key: value.clone() for key, value in VQDecoder(shape).state_dict().items()}
    state["encoder.conv_in.weight"], state["quant_conv.bias"] = torch.zeros(3), torch.zeros(8)
    if not taming:
        return state
    swaps = (("mid.0.", "mid.block_1."), ("mid.1.", "mid.attn_1."), ("mid.2.", "mid.block_2."), (".res.", ".block."))
    swaps = (*swaps, *((f"conv_blocks.{level}.", f"up.{levels - 1 - level}.") for level in range(levels)))
    for here, there in swaps:
        state = {key.replace(here, there): value for key, value in state.items()}
    return state


@dataclass
class Tiny:
    """A backbone, and the model of transformers behind it where there is one."""

    backbone: RealImage
    prompt: Prompt
    origin: Any = None
    tokenizer: Any = None


def request(settings: dict[str, Any], **parts: Path) -> Request:
    """What a family loads from, in fp32 on the CPU."""
    named = {key: Path(f"{key}.pt") for key in ("model", "vq", "gpt", "tok", "text")}
    return Request("tiny", {**named, **parts}, settings, torch.float32, "cpu")


def backbone(model: Model, guidance: float) -> RealImage:
    """The adapter around a model."""
    identity = Identity("tiny", "fp32", "cpu", capabilities(model, RealImage.meets({})), "0" * 64)
    return RealImage(identity, model, guidance)


def chameleon_parts(lines: bool) -> tuple[Any, Any]:
    """Chameleon and its tokenizer; with `lines`, the words of Lumina-mGPT."""
    torch.manual_seed(1)
    special = [letters(code) for code in reversed(range(CODES))] + [chameleon_family.BOI, chameleon_family.EOT]
    special += [chameleon_family.LINE, "<reserved08801>", "<reserved08802>"] if lines else []
    words = tokenizer(special)
    config = ChameleonConfig(
        **TEXT,
        vocab_size=len(words),
        vocabulary_map=words.get_vocab(),
        vq_config={"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 32,
                   "embed_dim": 8, "num_embeddings": CODES, "resolution": 8, "attn_type": "none"},
    )  # fmt: skip
    return ChameleonForConditionalGeneration(config).eval(), words


def chameleon(guidance: float, lines: bool) -> Tiny:
    model, words = chameleon_parts(lines)
    prompts = chameleon_family.PROMPTS["lumina" if lines else "anole"]
    settings = {"pixels": 32 if lines else 8}
    state = vq_state(True, levels=4 if lines else 2)
    pictures = chameleon_family.assemble(request(settings), model, words, state, prompts)
    return Tiny(backbone(pictures, guidance), PROMPT, model, words)


def emu3_parts() -> tuple[Any, Any]:
    """Emu3 and its tokenizer."""
    torch.manual_seed(1)
    special = [f"<|visual token {code:06d}|>" for code in range(CODES)]
    names = (emu3_family.BOI, emu3_family.IMAGE, emu3_family.EOI, emu3_family.LINE, emu3_family.FRAME, emu3_family.EOS)
    words = tokenizer([*special, *names, "<image>"])
    vq = {"codebook_size": CODES, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
    config = Emu3Config(
        text_config={**TEXT, "vocab_size": len(words), "attention_dropout": 0.0, "pad_token_id": 2, "bos_token_id": 0},
        vq_config={**vq, "attn_resolutions": [1], "hidden_size": 32, "temporal_downsample_factor": 2},
        vocabulary_map=words.get_vocab(),
    )
    return Emu3ForConditionalGeneration(config).eval(), words


def emu3(guidance: float) -> Tiny:
    model, words = emu3_parts()
    return Tiny(backbone(emu3_family.assemble(request({"pixels": 8}), model, words), guidance), PROMPT, model, words)


def janus_parts() -> tuple[Any, Any]:
    """Janus and its tokenizer."""
    torch.manual_seed(1)
    words = tokenizer([janus_family.BOI, janus_family.PAD], opens=True)
    config = JanusConfig(
        text_config={"model_type": "llama", **TEXT, "vocab_size": len(words)},
        vision_config={**DECODER, "image_size": 16, "patch_size": 4, "projection_dim": 32, "num_image_tokens": 16},
        vq_config={"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 32, "base_channels": 32,
                   "channel_multiplier": [1, 1], "num_res_blocks": 1, "projection_dim": 32,
                   "image_token_embed_dim": 32, "num_patches": 4},
    )  # fmt: skip
    return JanusForConditionalGeneration(config).eval(), words


def janus(guidance: float) -> Tiny:
    model, words = janus_parts()
    origin = copy.deepcopy(model)
    return Tiny(backbone(janus_family.assemble(request({}), model, words), guidance), PROMPT, origin, words)


def gpt_state(shape: Shape) -> dict[str, Tensor]:
    """Tensors of LlamaGen's layout, none of them zero."""
    torch.manual_seed(1)
    return {key: torch.randn(value.shape) * 0.2 for key, value in GPT(shape).state_dict().items()}


def llamagen(guidance: float, kind: str) -> Tiny:
    shape = Shape(kind, 3, 4, 32, 4, codes=CODES, prompt=10, features=12, mlp=48)
    vq = chameleon_family.decoder(request({}), vq_state(False), normalised=True)
    if kind == "tar":
        settings = {"length": 81}
        shape = Shape(kind, 3, 4, 32, 4, codes=CODES, prompt=81, features=12, mlp=48)
        front = tar_family.Front(None, lambda codes: torch.sin(torch.arange(12) * (1.0 + codes[:, None])))
        pictures = tar_family.assemble(request(settings), shape, gpt_state(shape), vq, front)
        return Tiny(backbone(pictures, guidance), Prompt("p", condition=np.arange(81)))
    pictures = llamagen_family.assemble(request({}), shape, gpt_state(shape), vq)
    if kind == "c2i":
        return Tiny(backbone(pictures, guidance), Prompt("p", text="class 7"))
    features = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
    features[:2] = 0  # the padding that stands in front
    return Tiny(backbone(pictures, guidance), Prompt("p", condition=features))


class Painter(torch.nn.Module):
    """Of the form of the Cosmos decoder: ids [1, 1, h, w] to pixels [1, 3, 1, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, ids: Tensor) -> Tensor:
        shade = (ids.to(self.scale.dtype) / 16.0 - 1.0) * self.scale
        wide = shade.repeat_interleave(16, dim=2).repeat_interleave(16, dim=3)
        return wide[:, None].expand(-1, 3, -1, -1, -1)


def simplear_parts(folder: Path) -> tuple[Any, Any, Path]:
    """SimpleAR, its tokenizer and a decoder's file."""
    torch.manual_seed(1)
    words = tokenizer([simplear_family.BEGIN, simplear_family.BOI])
    config = Qwen2Config(**TEXT, vocab_size=len(words) + CODES + 8)
    path = folder / "decoder.jit"
    torch.jit.script(Painter()).save(str(path))
    return Qwen2ForCausalLM(config).eval(), words, path


def simplear(guidance: float, folder: Path) -> Tiny:
    model, words, path = simplear_parts(folder)
    origin = Qwen2ForCausalLM(model.config).eval()
    origin.load_state_dict(model.state_dict())
    pictures = simplear_family.assemble(request({"pixels": 64}, vq=path), model, words, (4, 4, 2))
    return Tiny(backbone(pictures, guidance), PROMPT, origin, words)


MAKERS: dict[str, Callable[[float, Path], Tiny]] = {
    "anole": lambda scale, folder: chameleon(scale, False),
    "lumina": lambda scale, folder: chameleon(scale, True),
    "emu3": lambda scale, folder: emu3(scale),
    "janus": lambda scale, folder: janus(scale),
    "llamagen_c2i": lambda scale, folder: llamagen(scale, "c2i"),
    "llamagen_t2i": lambda scale, folder: llamagen(scale, "t2i"),
    "simplear": simplear,
    "tar": lambda scale, folder: llamagen(scale, "tar"),
}
