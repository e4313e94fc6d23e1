"""Reading a drafter of own layers between rows of another model's embedding."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.core import int8
from stridebench.harness.errors import WeightsError

EMBEDDING = "model.embed_tokens.weight"
KEPT = "kept"
"""Name of the tensor that lists the ids proposed."""
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def folder_of(body: str) -> Path:
    """The folder of a path, or of a name of shipped weights."""
    return Path(body).expanduser() if body.startswith((".", "/", "~")) else sources.SHIPPED / body


def read(name: str, target: Path, body: Path) -> tuple[LlamaForCausalLM, Int[Tensor, " K"]]:
    """The drafter as a model of transformers whose head has the rows of the kept ids; and those ids.

    Raises:
        WeightsError: the layers are not there, or are made for an embedding of another shape.
    """
    if not (body / "config.json").is_file():
        raise WeightsError(
            f"{name}: {body} holds no config.json; train it: stride train backbone {body.name} --out {body}"
        )
    embedding = read_embedding(name, target)
    with transformers_models.one_error(name, body, "has no configuration of a Llama"):
        config = LlamaConfig.from_pretrained(body, local_files_only=True)
    if (config.vocab_size, config.hidden_size) != tuple(embedding.shape):
        raise WeightsError(
            f"{name}: the layers in {body} are made for an embedding of {config.vocab_size} x {config.hidden_size} and "
            f"{target} holds one of {embedding.shape[0]} x {embedding.shape[1]}; take the target it was trained for"
        )
    try:
        tensors = int8.read(body / "model.safetensors")
        ids = tensors.pop(KEPT).long()
        model = assemble(config, embedding, ids)
        model.load_state_dict({f"model.{key}": value.float() for key, value in tensors.items()}, strict=False)
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise WeightsError(f"{name}: the weights in {body} cannot be loaded ({error}); train them again") from error
    lost = [key for key in model.model.state_dict() if "embed" not in key and key not in tensors]
    if lost:
        raise WeightsError(f"{name}: {body} lacks {len(lost)} tensors, such as {lost[0]}; train it again")
    return model, ids


def read_embedding(name: str, target: Path) -> Float[Tensor, "V E"]:
    """The embedding of a folder, which must also be its unembedding.

    Raises:
        WeightsError: no file holds it, or the model has another unembedding.
    """
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if "lm_head.weight" in file.keys():  # noqa: SIM118  # no mapping
                raise WeightsError(
                    f"{name}: {target} has an unembedding of its own; a drafter shares one with its input"
                )
            if EMBEDDING in file.keys():  # noqa: SIM118  # no mapping
                embedding: Tensor = file.get_tensor(EMBEDDING)
                return embedding.float()
    raise WeightsError(f"{name}: no safetensors in {target} hold {EMBEDDING}; fetch the target again")


def assemble(config: LlamaConfig, embedding: Float[Tensor, "V E"], ids: Int[Tensor, " K"]) -> LlamaForCausalLM:
    """A model with this embedding, and its kept rows as the head; its layers are new."""
    small = LlamaConfig.from_dict({**config.to_dict(), "vocab_size": 1, **dict.fromkeys(SPECIAL)})
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(small)
    model.config = config
    model.model.embed_tokens = nn.Embedding(embedding.shape[0], embedding.shape[1], _weight=embedding)
    model.lm_head = nn.Linear(embedding.shape[1], len(ids), bias=False)
    model.lm_head.weight.data = embedding[ids].clone()
    return model
