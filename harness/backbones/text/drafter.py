"""A small drafter that borrows its target's embedding and unembedding: it has the layers between them alone.

Its distributions cover the target's whole vocabulary. Ids that it was not trained to propose have probability zero;
verification corrects for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from stridebench.harness.backbones.base import TYPES, Identity, check_dtype
from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import FusedLlama
from stridebench.harness.backbones.slots.net import Net, SlotInputs
from stridebench.harness.backbones.text.chat import TokenizedAdapter
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.errors import UsageError, WeightsError, check_parameters
from stridebench.harness.kernels import int8
from stridebench.harness.registry import BACKBONES

EMBEDDING = "model.embed_tokens.weight"
KEPT = "kept"
"""Name of the tensor that lists the ids proposed."""
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def folder_of(body: str) -> Path:
    """Return the folder of a path, or of a name of shipped weights."""
    return Path(body).expanduser() if body.startswith((".", "/", "~")) else sources.SHIPPED / body


def read(name: str, target: Path, body: Path) -> tuple[LlamaForCausalLM, Int[Tensor, " K"]]:
    """Return the drafter as a model of transformers whose head has the rows of the kept ids; and those ids.

    Raises WeightsError if the layers are not there, or are made for an embedding of another shape.
    """
    if not (body / "config.json").is_file():
        raise WeightsError(
            f"{name}: {body} holds no config.json; train it: stride train backbone {body.name} --out {body}"
        )
    embedding = read_embedding(name, target)
    with transformers_models.one_error(name, body, "lacks a configuration of a Llama"):
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
    """Return the embedding of a folder, or raise WeightsError if it is not also its unembedding."""
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if "lm_head.weight" in file.keys():  # noqa: SIM118  # no mapping
                raise WeightsError(f"{name}: {target} has a separate unembedding; a drafter shares one with its input")
            if EMBEDDING in file.keys():  # noqa: SIM118  # no mapping
                embedding: Tensor = file.get_tensor(EMBEDDING)
                return embedding.float()
    raise WeightsError(f"{name}: no safetensors in {target} hold {EMBEDDING}; fetch the target again")


def assemble(config: LlamaConfig, embedding: Float[Tensor, "V E"], ids: Int[Tensor, " K"]) -> LlamaForCausalLM:
    """Return a model with this embedding, and its kept rows as the head; its layers are new."""
    small = LlamaConfig.from_dict({**config.to_dict(), "vocab_size": 1, **dict.fromkeys(SPECIAL)})
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(small)
    model.config = config
    model.model.embed_tokens = nn.Embedding(embedding.shape[0], embedding.shape[1], _weight=embedding)
    model.lm_head = nn.Linear(embedding.shape[1], len(ids), bias=False)
    model.lm_head.weight.data = embedding[ids].clone()
    return model


@BACKBONES.register("drafter")
@final
class Drafter(TokenizedAdapter):
    """Layers shaped like Llama's between the embedding of another model and some of its rows.

    Args (of ``params``):
        source: weights of the model whose embedding and tokenizer it uses, as in hf_causal.
        body: its layers: a name among the shipped weights, or a folder.
        vocabulary: the number of token ids, if it must be known before loading.
    """

    kind = "a drafter"
    parameters = ("source", "body", "vocabulary")

    def __init__(self, identity: Identity, net: Net, tokenizer: Any) -> None:
        super().__init__(identity, tokenizer)
        self._net = net

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Drafter:
        check_parameters(f"{name}: {cls.kind}", params, cls.parameters)
        for key in ("source", "body"):
            if key not in params:
                raise UsageError(f"{name}: a drafter needs {key}: the target's weights, and its layers")
        check_dtype(name, dtype)
        target = sources.locate(name, sources.parse(name, params["source"]))
        body = folder_of(str(params["body"]))
        model, ids = read(name, target, body)
        model = transformers_models.place(model, device, TYPES[dtype]).eval().requires_grad_(False)
        capabilities = replace(
            transformers_models.capabilities(model, cls.meets(params)), vocabulary=len(model.model.embed_tokens.weight)
        )
        fingerprint = hashlib.sha256(f"{sources.digest(target)} {sources.digest(body)}".encode()).hexdigest()
        net = Spread(FusedLlama(model), ids.to(device), capabilities.vocabulary)
        identity = Identity(name, dtype, device, capabilities, fingerprint)
        return cls(identity, net, transformers_models.read_tokenizer(target))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER})

    def cache(self) -> SlotCache:
        return self._slots(self._net)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._text(tokens, clean_up_tokenization_spaces=False)


@final
class Spread:
    """A net over some ids, its logits [R, K] laid out over the whole vocabulary: -inf for the others."""

    kind = "fused"

    def __init__(self, inner: Net, ids: Int[Tensor, " K"], vocabulary: int) -> None:
        self.layers = inner.layers
        self._inner, self._ids, self._vocabulary = inner, ids, vocabulary

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        few = self._inner(inputs, rows)
        return few.new_full((rows, self._vocabulary), float("-inf")).index_copy_(1, self._ids, few)

    def pick(self, layers: Sequence[int]) -> Spread:
        return Spread(self._inner.pick(layers), self._ids, self._vocabulary)
