"""Tiny picture models, written as their makers publish them: grids of 4x4 cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5EncoderModel,
)

from stridebench.harness.backbones.image import multimodal
from stridebench.harness.backbones.image.llamagen_modules import GPT, LlamaGenShape, published
from stridebench.harness.backbones.image.tar import Meanings
from stridebench.harness.backbones.image.vqgan import VQDecoder, VQEncoder, VQShape
from stridebench.harness.backbones.tiny.texts import character_tokenizer

CODES = 32
DECODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = {**DECODER, "num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.3}


def save(family: str, parts: Mapping[str, Path], pixels: int) -> None:
    """Write the components of a stand-in to these files and folders; ``pixels`` a side is for Tar."""
    if family == "tar":
        _save_tar(pixels // 2, parts)
        return
    if family.startswith("llamagen_"):
        _save_llamagen(family.removeprefix("llamagen_"), parts)
        return
    if family == "simplear":
        levels = torch.tensor(multimodal.LEVELS).prod()
        model, words = simplear_parts(int(levels))
        save_painter(parts["vq"])
    else:
        makers = {"emu3": emu3_parts, "janus": janus_parts}
        model, words = makers[family]() if family in makers else chameleon_parts(family == "lumina")
        if "vq" in parts:
            state = vq_state(True, levels=4 if family == "lumina" else 2)
            torch.save({"state_dict": state, "epoch": 1}, parts["vq"])
    for saveable in (model, words):
        saveable.save_pretrained(parts["model"])


def _save_llamagen(kind: str, parts: Mapping[str, Path]) -> None:
    shape = published(kind, "tiny", 4)
    torch.save({"model": gpt_state(shape), "steps": 3}, parts["gpt"])
    torch.save({"model": vq_state(False, codes=shape.codes)}, parts["vq"])
    if "text" in parts:
        words = character_tokenizer([])
        torch.manual_seed(1)
        sizes = {"d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        encoder = T5EncoderModel(T5Config(vocab_size=len(words), d_model=shape.features, **sizes))
        for saveable in (encoder, words):
            saveable.save_pretrained(parts["text"])


def _save_tar(side: int, parts: Mapping[str, Path]) -> None:
    """Write Tar's de-tokenizer for a picture of ``side`` cells a side, TA-Tok, and a language model."""
    shape = published("tar", "tiny", side)
    torch.save({"model": gpt_state(shape), "steps": 3}, parts["gpt"])
    torch.manual_seed(1)  # stand-ins of all sizes have one tokenizer of pictures
    torch.save({"model": vq_state(False, codes=shape.codes)}, parts["vq"])
    torch.save(tatok_state(CODES, shape.features), parts["tok"])
    for saveable in tar_parts(CODES):
        saveable.save_pretrained(parts["model"])


def tatok_state(codes: int, width: int) -> dict[str, Tensor]:
    """Return the tensors of TA-Tok's decoder under published names."""
    torch.manual_seed(1)
    state = Meanings(codes, 24, width, 1, 16).state_dict()
    names = {"embedding": "bottleneck.regularizer.embedding", "out_linear": "bottleneck.out_linear"}
    names |= {"task.": "decode_task_layer.", "decoder.": "decoder.vision_model."}
    return {
        next(there + key[len(here) :] for here, there in names.items() if key.startswith(here)): value
        for key, value in state.items()
    }


def tar_parts(codes: int) -> tuple[Any, Any]:
    """Return Tar's language model and its tokenizer."""
    torch.manual_seed(1)
    words = character_tokenizer(["<im_start>", "<S0>", "<S1>", "<S2>", *(f"<I{code}>" for code in range(codes))])
    words.chat_template = "{% for turn in messages %}{{ turn['content'] }}{% endfor %}"
    return Qwen2ForCausalLM(Qwen2Config(**TEXT, vocab_size=len(words), eos_token_id=None)).eval(), words


def letters(code: int) -> str:
    """Return Chameleon's word for a picture code."""
    return "IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) + "Z"


def vq_state(taming: bool, codes: int = CODES, levels: int = 2) -> dict[str, Tensor]:
    """Return the tensors of a VQ decoder and its encoder, under published names."""
    widths = (64, *[32] * (levels - 1))
    shape = VQShape(codes, 8, 32, widths, 2, attends=not taming, normalised=not taming)
    state = {key: value.clone() for key, value in VQDecoder(shape).state_dict().items()}
    encoder = VQEncoder(widths[::-1], 1, attends=not taming, latent=32, width=8)
    state |= {key: value.clone() for key, value in encoder.state_dict().items()}
    if not taming:
        return state
    swaps = [("mid.0.", "mid.block_1."), ("mid.1.", "mid.attn_1."), ("mid.2.", "mid.block_2."), (".res.", ".block.")]
    swaps += [(f"encoder.conv_blocks.{level}.", f"encoder.down.{level}.") for level in range(levels)]
    swaps += [(f"conv_blocks.{level}.", f"up.{levels - 1 - level}.") for level in range(levels)]
    for here, there in swaps:
        state = {key.replace(here, there): value for key, value in state.items()}
    return state


def chameleon_parts(lines: bool) -> tuple[Any, Any]:
    """Return Chameleon and its tokenizer; with `lines`, the words of Lumina-mGPT."""
    torch.manual_seed(1)
    special = [letters(code) for code in reversed(range(CODES))] + [multimodal.BOI, multimodal.EOT]
    special += [multimodal.LINE, "<reserved08801>", "<reserved08802>"] if lines else []
    words = character_tokenizer(special)
    config = ChameleonConfig(
        **TEXT,
        vocab_size=len(words),
        vocabulary_map=words.get_vocab(),
        vq_config={"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 32,
                   "embed_dim": 8, "num_embeddings": CODES, "resolution": 8, "attn_type": "none"},
    )  # fmt: skip
    return ChameleonForConditionalGeneration(config).eval(), words


def emu3_parts() -> tuple[Any, Any]:
    """Return Emu3 and its tokenizer."""
    torch.manual_seed(1)
    special = [f"<|visual token {code:06d}|>" for code in range(CODES)]
    words = character_tokenizer([*special, *multimodal.EMU3_SPECIAL, "<image>"])
    vq = {"codebook_size": CODES, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1}
    config = Emu3Config(
        text_config={**TEXT, "vocab_size": len(words), "attention_dropout": 0.0, "pad_token_id": 2, "bos_token_id": 0},
        vq_config={**vq, "attn_resolutions": [1], "hidden_size": 32, "temporal_downsample_factor": 2},
        vocabulary_map=words.get_vocab(),
    )
    return Emu3ForConditionalGeneration(config).eval(), words


def janus_parts() -> tuple[Any, Any]:
    """Return Janus and its tokenizer."""
    torch.manual_seed(1)
    words = character_tokenizer([multimodal.JANUS_BOI, multimodal.JANUS_PAD], opens=True)
    config = JanusConfig(
        text_config={"model_type": "llama", **TEXT, "vocab_size": len(words)},
        vision_config={**DECODER, "image_size": 16, "patch_size": 4, "projection_dim": 32, "num_image_tokens": 16},
        vq_config={"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 32, "base_channels": 32,
                   "channel_multiplier": [1, 1], "num_res_blocks": 1, "projection_dim": 32,
                   "image_token_embed_dim": 32, "num_patches": 4},
    )  # fmt: skip
    return JanusForConditionalGeneration(config).eval(), words


def gpt_state(shape: LlamaGenShape) -> dict[str, Tensor]:
    """Return tensors of LlamaGen's layout, none of them zero."""
    torch.manual_seed(1)
    return {key: torch.randn(value.shape) * 0.2 for key, value in GPT(shape).state_dict().items()}


def simplear_parts(codes: int) -> tuple[Any, Any]:
    """Return SimpleAR and its tokenizer."""
    torch.manual_seed(1)
    words = character_tokenizer([multimodal.SIMPLEAR_BEGIN, multimodal.SIMPLEAR_BOI])
    return Qwen2ForCausalLM(Qwen2Config(**TEXT, vocab_size=len(words) + codes + 8)).eval(), words


class Painter(torch.nn.Module):
    """Of the form of the Cosmos decoder: ids [1, 1, h, w] to pixels [1, 3, 1, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, ids: Tensor) -> Tensor:
        shade = (ids.to(self.scale.dtype) / 16.0 - 1.0) * self.scale
        wide = shade.repeat_interleave(16, dim=2).repeat_interleave(16, dim=3)
        return wide[:, None].expand(-1, 3, -1, -1, -1)


def save_painter(path: Path) -> None:
    """Write a `Painter` as TorchScript."""
    torch.jit.script(Painter()).save(str(path))  # type: ignore[no-untyped-call]  # torch's own
