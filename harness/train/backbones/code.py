"""A language model of short Python functions, small enough to decode in tests: a Llama of a million parameters.

Its smaller sibling is a drafter that proposes several tokens in one pass. Source: An et al. 2025, PARD,
arXiv:2504.18583, sections 3.2 and 3.3. It learns from texts of the target's kind, and never sees the target.
Its twin with two masks reads a text causally and fills a block of masks behind it. Source: Gat et al. 2025, Set Block
Decoding, arXiv:2509.04185; Nemotron-Labs-Diffusion, arXiv:2607.05722. Its masked twin sees whole blocks. Source: Cheng
et al. 2025, SDAR, arXiv:2510.06303.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.finetuning import FinetunedText, Tuning, save_llada
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

    @cached_property
    def mask(self) -> int:
        """The id of the byte 255, which no program has."""
        byte = self.tokenizer.token_to_id("\u00ff")
        assert byte is not None, "its alphabet has all bytes"
        return byte

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
        self._config(model).save_pretrained(folder)
        wrapped = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, bos_token=END, eos_token=END)
        wrapped.save_pretrained(folder)

    def _config(self, model: nn.Module) -> Any:
        """The configuration that is written beside the weights."""
        return model.config

    def _rows(self, random: np.random.Generator, count: int, held_out: bool) -> Int[Tensor, "B N+1"]:
        """Programs with their ends, concatenated and cut into rows."""
        stream = (t for program in programs(random, held_out) for t in (0, *self.tokenizer.encode(program.text).ids))
        size = count * (self.length + 1)
        return torch.tensor(list(islice(stream, size))).view(count, self.length + 1)


@dataclass(frozen=True)
class PardCode(Code):
    """Train on texts and on chains of masks behind their tokens: mask j stands and predicts j places further on.

    A mask sees the text up to its chain's token and the masks before it in its chain.

    Args:
        drafts: K, the tokens that a pass learns to propose: one behind a token, and one behind each of K - 1 masks.
        retained: r. A chain has a mask at depth j with a chance of max(r^j, least), which PARD calls conditional drop.
        least: of that chance.
    """

    width: int = 64
    layers: int = 2
    heads: int = 2
    inner: int = 192
    length: int = 128
    steps: int = 600
    drafts: int = 8
    retained: float = 0.7
    least: float = 0.2

    summary = "sibling of embedded-code of 0.1 million parameters that fills masks, a drafter for PARD"
    hours = 0.3

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        tokens = self._rows(random, self.batch, held_out=False)
        chances = np.maximum(self.retained ** np.arange(1, self.drafts), self.least)
        rows = MaskChains.of((random.random(self.length)[:, None] < chances).sum(1))
        return functional.cross_entropy(self._read(model, tokens, rows).flatten(0, 1), rows.predicted(tokens).flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out programs: the share of tokens guessed by draft 1, which needs no mask, to draft K."""
        tokens = self._rows(np.random.default_rng(0), 8, held_out=True)
        rows = MaskChains.of(np.full(self.length, self.drafts - 1))
        right = self._read(model, tokens, rows).argmax(2) == rows.predicted(tokens)
        return {f"guessed_{j + 1}": float(right[:, rows.depth == j].float().mean()) for j in range(self.drafts)}

    def _config(self, model: nn.Module) -> Any:
        config: Any = model.config
        config.pard_token = self.mask
        return config

    def _read(self, model: nn.Module, tokens: Int[Tensor, "B N+1"], rows: MaskChains) -> Float[Tensor, "B R V"]:
        ids = tokens[:, rows.token].masked_fill(rows.depth > 0, self.mask)
        places = (rows.token + rows.depth).expand(len(ids), -1)
        unseen = torch.zeros(1, 1, *rows.visible.shape).masked_fill(~rows.visible, -torch.inf)
        logits: Tensor = model(input_ids=ids, position_ids=places, attention_mask=unseen, use_cache=False).logits
        return logits


class MaskChains(NamedTuple):
    """The rows of a pass over N tokens and the masks behind them.

    Args:
        token: place of the token of the row, or of the token that its chain stands behind.
        depth: 0 for a token, j for the j-th mask of a chain.
        visible: the rows that a row attends to.
    """

    token: Int[Tensor, " R"]
    depth: Int[Tensor, " R"]
    visible: Bool[Tensor, "R R"]

    @classmethod
    def of(cls, lengths: Int[np.ndarray, " N"]) -> MaskChains:
        """Return the rows of chains of these lengths, cut where they would predict behind the last token."""
        count = len(lengths)
        masks = [(i, j) for i, length in enumerate(lengths) for j in range(1, min(length, count - 1 - i) + 1)]
        token, depth = torch.tensor([*((i, 0) for i in range(count)), *masks]).T
        of_text = (depth == 0) & (token <= token[:, None])
        own = (token == token[:, None]) & (depth <= depth[:, None])
        return cls(token, depth, of_text | own)

    def predicted(self, tokens: Int[Tensor, "B N+1"]) -> Int[Tensor, "B R"]:
        """Return the token that each row should predict."""
        return tokens[:, self.token + self.depth + 1]


@dataclass(frozen=True)
class TunedCode(Code):
    """Train embedded-code further, beside its texts also on blocks of them with masks.

    Args:
        block: B, the rows of a block.
    """

    length: int = 192
    batch: int = 8
    steps: int = 2000
    block: int = 8

    hours = 0.65
    rate = 1e-3
    warmup = 20
    fall = 0.8

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        return FinetunedText("embedded-code", Tuning(0))

    def _read(
        self, model: nn.Module, tokens: Int[Tensor, "B N+1"], rows: TextBlocks, masked: Bool[Tensor, "B R"]
    ) -> Float[Tensor, "B R V"]:
        ids = tokens[:, rows.token].masked_fill(masked, self.mask)
        unseen = torch.zeros(1, 1, *rows.visible.shape).masked_fill(~rows.visible, -torch.inf)
        logits: Tensor = model(ids, rows.token.expand(len(ids), -1), unseen).logits
        return logits


@dataclass(frozen=True)
class BlocksCode(TunedCode):
    """The loss is L_AR on texts and L_mask on blocks of them, whose first token is never masked.

    Rows of a block see the text before it and each other, and predict the tokens of their own places.

    Args:
        whole: share of the blocks in which all other tokens are masked; else each is with one chance of 0 to 1.
    """

    whole: float = 0.5

    summary = "embedded-code tuned to fill blocks of masks too, for linear_spec and sbd"

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        tokens = self._rows(random, self.batch, held_out=False)
        rows = TextBlocks.of(self.length, self.block, int(random.integers(self.block)))
        chances = random.random((self.batch, self.length // self.block + 1))
        chances[random.random(chances.shape) < self.whole] = 1.0
        by_row = torch.from_numpy(chances[:, rows.number.numpy()])
        masked = (torch.from_numpy(random.random(by_row.shape)) < by_row) & (rows.depth > 0)
        logits = self._read(model, tokens, rows, masked)
        of_text = functional.cross_entropy(logits[:, : self.length].flatten(0, 1), tokens[:, 1:].flatten())
        return of_text + functional.cross_entropy(logits[masked], tokens[:, rows.token][masked])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out programs.

        - ``loss``, ``loss_base``: nats a token read causally, of the tuned model and of embedded-code.
        - ``guessed_1`` and on: the share of tokens that one pass guesses at each place of a block of masks.
        """
        assert isinstance(model, FinetunedText)
        tokens = self._rows(np.random.default_rng(0), 32, held_out=True)
        rows = TextBlocks.of(self.length, self.block, 0)
        logits = self._read(model, tokens, rows, (rows.depth > 0).expand(len(tokens), -1))
        right = logits.argmax(2) == tokens[:, rows.token]
        of_text = {"loss": logits[:, : self.length], "loss_base": model.base(tokens[:, :-1])}
        following = tokens[:, 1:].flatten()
        return {
            **{key: float(functional.cross_entropy(read.flatten(0, 1), following)) for key, read in of_text.items()},
            **{f"guessed_{j}": float(right[:, rows.depth == j].float().mean()) for j in range(1, self.block)},
        }

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, FinetunedText)
        model.model.config.mask_token_id = self.mask
        model.export(folder)


@dataclass(frozen=True)
class MaskedCode(TunedCode):
    """Make it a masked model of blocks, as SDAR was made from Qwen3.

    Rows of the text see their block and earlier ones. A copy of each block has 1 to B masks, all numbers equally often;
    its rows see the earlier blocks of the text and each other. Every copy has the same weight, whatever its masks.
    """

    summary = "embedded-code tuned to fill masks block by block, each block seeing earlier ones"

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        tokens = self._rows(random, self.batch, held_out=False)
        counts = random.integers(1, self.block + 1, (self.batch, self.length // self.block, 1))
        return self._nats(model, tokens, counts, random)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out programs, of the weights as they are stored.

        - ``nats``: a token, if those of a block are filled one by one in random order; ``nats_1``, ``nats_B``: a
          masked token of a block with one mask, and of one with masks alone.
        - ``nats_base``: a token of embedded-code, which reads from left to right.
        """
        assert isinstance(model, FinetunedText)
        tokens = self._rows(np.random.default_rng(0), 32, held_out=True)
        size, nats = (len(tokens), self.length // self.block, 1), list[float]()
        for count in range(1, self.block + 1):
            random = np.random.default_rng(count)
            nats.append(float(self._nats(model, tokens, np.full(size, count), random)))
        base = functional.cross_entropy(model.base(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        ends = {"nats_1": nats[0], f"nats_{self.block}": nats[-1]}
        return {"nats": sum(nats) / self.block, **ends, "nats_base": float(base)}

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, FinetunedText)
        model.export_tokenizer(folder)
        save_llada(model.model, folder, 0, {"mask_token_id": self.mask, "block_size": self.block}, packed=True)

    def _nats(
        self,
        model: nn.Module,
        tokens: Int[Tensor, "B N+1"],
        counts: Int[np.ndarray, "B K one"],
        random: np.random.Generator,
    ) -> Tensor:
        """Return the nats of a masked token, as the mean of those of each block.

        Args:
            counts: masks of each block, at places drawn evenly.
        """
        rows = TextBlocks.of(self.length, self.block, 0, causal=False)
        ranks = random.random((*counts.shape[:2], self.block)).argsort(2)
        masked = torch.zeros(len(tokens), len(rows.token), dtype=torch.bool)
        masked[:, self.length :] = torch.from_numpy(ranks < counts).flatten(1)
        shares = torch.from_numpy(1 / counts).expand(*ranks.shape).flatten(1)[masked[:, self.length :]]
        logits = self._read(model, tokens, rows, masked)[masked]
        nats = functional.cross_entropy(logits, tokens[:, rows.token][masked], reduction="none")
        return (nats * shares).sum() / shares.sum()


class TextBlocks(NamedTuple):
    """The rows of a pass over N tokens and the blocks that repeat some of them.

    Args:
        token: place of the row's token.
        depth: 0 for a token of the text and for the first of a block, j for the j-th one behind that.
        number: of the row's block, from 0; that of a row of the text means nothing.
        visible: the rows that a row attends to.
    """

    token: Int[Tensor, " R"]
    depth: Int[Tensor, " R"]
    number: Int[Tensor, " R"]
    visible: Bool[Tensor, "R R"]

    @classmethod
    def of(cls, count: int, block: int, offset: int, *, causal: bool = True) -> TextBlocks:
        """Return the rows of blocks that lie end to end from a token on, as many as are whole.

        Args:
            causal: rows of the text see earlier ones only; otherwise their block and earlier ones.
        """
        assert causal or offset == 0, "the text has the same blocks"
        begins = torch.arange(offset, count + 1 - block, block)
        text, depth = torch.arange(count), torch.arange(block).repeat(len(begins))
        number = torch.arange(len(begins)).repeat_interleave(block)
        token = torch.cat([text, begins[number] + depth])
        newest_of_text = text if causal else text // block * block + block - 1
        newest = torch.cat([newest_of_text, begins[number] - 1])  # of the tokens that a row sees as text
        of_text = (torch.arange(len(token)) < count) & (token <= newest[:, None])
        own = torch.cat([torch.full((count,), -1), number])
        together = (own >= 0) & (own == own[:, None])
        return cls(token, torch.cat([0 * text, depth]), own.clamp_min(0), of_text | together)


class _Untied(nn.Module):
    """The model's tensors, without the unembedding, which is its embedding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.model


RECIPES.register("code")(Code())
RECIPES.register("pard-embedded-code")(PardCode())
RECIPES.register("blocks-embedded-code")(BlocksCode())
RECIPES.register("masked-embedded-code")(MaskedCode())
