"""A picture model of random weights over grey levels, with captions of five words."""

from __future__ import annotations

from typing import Any

from stridebench.harness.backbones.image.adapter import ImageModel
from stridebench.harness.core.task import Prompt

WORDS = ("a", "cat", "dog", "left", "of")
CODES, SIDE = 17, 3
PICTURE = {"rows": SIDE, "columns": SIDE, "codes": CODES, "words": list(WORDS)}
SIZES: dict[str, Any] = {
    "vocab_size": CODES + len(WORDS) + 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "picture": PICTURE,
}
EMPTY, BEGIN = CODES + len(WORDS), CODES + len(WORDS) + 1
CAPTION = "a cat left of a dog"


def params(**changes: Any) -> dict[str, Any]:
    return {"source": {"random": {"model_type": "llama", "config": {**SIZES, **changes}, "seed": 1}}}


def tiny_picture_model(guidance: float = 2.5, **changes: Any) -> ImageModel:
    return ImageModel.load("tiny", {**params(**changes), "guidance": guidance}, "fp32", "cpu")


def prompt(text: str = CAPTION) -> Prompt:
    return Prompt("p", text)
