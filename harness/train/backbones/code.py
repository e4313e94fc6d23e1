"""A language model of short Python functions, small enough to decode in tests: a Llama of a million parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.recipe import Recipe, save_bf16

END = "<|end|>"
TOKENIZER_SEED = 1_000_003
"""Seed of the programs that the vocabulary is built from; it does not depend on the seed of a training."""


@dataclass(frozen=True)
class Code(Recipe):
    """Train on new programs of `harness.synthetic.code` in every step. A hash of a program's head holds it out."""

    vocabulary: int = 512
    width: int = 128
    layers: int = 5
    heads: int = 4
    inner: int = 384
    length: int = 256
    batch: int = 16
    steps: int = 450

    kind = "backbone"
    summary = "Llama of a million parameters that writes short Python functions and their tests"
    source = "programs of a grammar of this project (harness/synthetic/code.py), Apache-2.0"
    hours = 0.3
    rate = 4e-3
    warmup = 40
    fall = 0.7

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads // 2,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=True,
        )
        return LlamaForCausalLM(config)  # type: ignore[no-any-return]  # transformers is annotated in part

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Byte pairs of programs that are not held out. Id 0 ends a program."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        written = programs(np.random.default_rng(TOKENIZER_SEED), held_out=False)
        tokenizer.train_from_iterator((p.text for p in islice(written, 2000)), trainer)
        return tokenizer

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        tokens = self._rows(random, self.batch, held_out=False)
        logits = model(input_ids=tokens[:, :-1]).logits
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out programs: nats a token, share of tokens guessed, and the nats of token frequencies."""
        tokens = self._rows(np.random.default_rng(0), 32, held_out=True)
        logits = model(input_ids=tokens[:, :-1]).logits.flatten(0, 1)
        right = tokens[:, 1:].flatten()
        training = self._rows(np.random.default_rng(1), 64, held_out=False).flatten()
        counts = torch.bincount(training, minlength=self.vocabulary) + 1.0
        return {
            "loss": float(functional.cross_entropy(logits, right)),
            "top1": float((logits.argmax(1) == right).float().mean()),
            "loss_frequencies": float(-(counts / counts.sum()).log()[right].mean()),
        }

    def export(self, model: nn.Module, folder: Path) -> None:
        save_bf16(_Untied(model), folder)
        config: Any = model.config
        config.save_pretrained(folder)
        wrapped = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, bos_token=END, eos_token=END)
        wrapped.save_pretrained(folder)

    def _rows(self, random: np.random.Generator, count: int, held_out: bool) -> Int[Tensor, "B N+1"]:
        """Programs with their ends, concatenated and cut into rows."""
        stream = (t for program in programs(random, held_out) for t in (0, *self.tokenizer.encode(program.text).ids))
        size = count * (self.length + 1)
        return torch.tensor(list(islice(stream, size))).view(count, self.length + 1)


class _Untied(nn.Module):
    """The model's tensors, without the unembedding, which is its embedding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.model


RECIPES.register("code")(Code())
