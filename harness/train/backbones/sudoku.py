"""Diffusion models that answer 4x4 sudokus, of masks or uniform noise, and their autoregressive twin of equal size.

Source: Nie et al. 2025, arXiv:2502.09992 (LLaDA), eq. 5 and Algorithm 2: only the answer of a puzzle is masked.
Schedules and weight: Abulkhanov et al., Cross-Regression, section 3, whose alpha' / (1 - alpha) is printed without the
minus that it needs. Uniform noise: as DiffusionGemma's; self-conditioning: Chen et al. 2022,
arXiv:2208.04202, section 3.2.
Symbols: alpha(t) probability that a token is not masked at time t, B puzzles of a step, L cells of an answer, V ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stridebench.harness.backbones.text.masked import CONDITIONING
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import sudoku
from stridebench.harness.train.finetuning import save_llada
from stridebench.harness.train.recipe import Recipe, autocast, save_bf16

END, MASK = "<|end|>", "<|mask|>"
IDS = (END, *sudoku.DIGITS, sudoku.HIDDEN, sudoku.ASK, MASK)
PROMPT = sudoku.CELLS + 1
CONTEXT = 64
CHECKED = 256
"""Held-out puzzles of the figures."""
EARLIEST = 1e-3
"""The smallest time that is drawn; LLaDA's epsilon."""
DECAY = -math.log(1e-3)
"""Lambda of the log-linear schedule: at t = 1 a thousandth of the tokens is not masked."""

Schedule = Literal["linear", "cosine", "log_linear"]


class Noise(NamedTuple):
    """Probability that a token is masked at time t, 1 - alpha, and the weight of its loss, -alpha' / (1 - alpha)."""

    masked: Float[Tensor, " B"]
    weight: Float[Tensor, " B"]


SCHEDULES: dict[Schedule, Callable[[Tensor], Noise]] = {
    "linear": lambda t: Noise(t, 1 / t),
    "cosine": lambda t: Noise((math.pi / 2 * t).sin() ** 2, math.pi / (math.pi / 2 * t).tan()),
    "log_linear": lambda t: Noise(-(-DECAY * t).expm1(), DECAY / (DECAY * t).expm1()),
}
"""alpha = 1 - t, whose weight is LLaDA's 1 / t; cos^2(pi t / 2); exp(-lambda t).

All three give the same bound on the likelihood: with p the probability to be masked, uniform in [0, 1], a masked token
has the weight 1 / p. They differ in how often each p is drawn, and so in the noise of the gradient.
"""


def tokenizer() -> Tokenizer:
    """One token a character; ids are places in ``IDS``."""
    characters = Tokenizer(models.WordLevel({word: index for index, word in enumerate(IDS)}, unk_token=END))
    characters.add_special_tokens([END, MASK])
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    return characters


@dataclass(frozen=True, kw_only=True)
class Sudoku(Recipe):
    """Train on new puzzles of `harness.synthetic.sudoku` in every step. A hash of a puzzle's text holds it out.

    Args:
        schedule: of the noise, or None for the autoregressive twin, which attends to the left and predicts the next
            token.
    """

    schedule: Schedule | None
    summary: str
    width: int = 96
    layers: int = 3
    heads: int = 3
    inner: int = 256
    batch: int = 64
    steps: int = 2000
    hours: float = 0.15

    kind = "backbone"
    source = "4x4 sudokus of this project (harness/synthetic/sudoku.py), Apache-2.0"
    rate = 3e-3
    warmup = 50
    fall = 0.7
    decay = 0.0
    average = 0.99

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        config = LlamaConfig(
            vocab_size=len(IDS),
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            bos_token_id=None,
            eos_token_id=0,
            tie_word_embeddings=False,
            attn_implementation="eager",  # a seventh less time than sdpa on these short rows (CPU, measured)
        )
        return LlamaForCausalLM(config)  # type: ignore[no-any-return]  # transformers is annotated in part

    def hidden(self, model: nn.Module) -> list[nn.Parameter]:
        return [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        return self.nats(model, rows(random, self.batch, held_out=False), random).mean()

    def nats(self, model: nn.Module, ids: Int[Tensor, "B N"], random: np.random.Generator) -> Float[Tensor, " B"]:
        """Nats a token of each answer: exact for the twin, an unbiased estimate of a bound for a masked model.

        The times of the rows are evenly spaced from one random start, so that each is uniform.
        """
        answer = ids[:, PROMPT:]
        if self.schedule is None:
            logits = logits_of(model, ids[:, :-1], causal=True)[:, PROMPT - 1 :]
            return _nats(logits, answer).mean(1)
        t = (torch.arange(len(ids)) / len(ids) + random.random()) % 1 * (1 - EARLIEST) + EARLIEST
        noise = SCHEDULES[self.schedule](t)
        masked = torch.from_numpy(random.random(answer.shape)) < noise.masked[:, None]
        return (_nats(self._filled(model, ids, masked), answer) * masked * noise.weight[:, None]).mean(1)

    def _filled(self, model: nn.Module, ids: Int[Tensor, "B N"], masked: Bool[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Logits of the answer's cells, some of which are masked."""
        read = ids.clone()
        read[:, PROMPT:][masked] = IDS.index(MASK)
        return logits_of(model, read, causal=False)[:, PROMPT:]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out puzzles.

        - ``nats``: a token.
        - ``solved_greedy``, ``solved_sampled``: share of puzzles solved with one token a pass, the most probable one or
          one drawn at T = 1. A masked model fills the cell of largest probability first.
        - ``solved_at_once``: share of puzzles that a masked model solves in one pass.
        """
        random = np.random.default_rng(0)
        ids = rows(random, CHECKED, held_out=True)
        figures = {"nats": float(self.nats(model, ids, random).mean())}
        for name, drawn in (("solved_greedy", None), ("solved_sampled", np.random.default_rng(1))):
            figures[name] = solved(ids, self.decode(model, ids, sudoku.CELLS, drawn))
        if self.schedule is not None:
            figures["solved_at_once"] = solved(ids, self.decode(model, ids, 1, None))
        return figures

    def decode(
        self, model: nn.Module, ids: Int[Tensor, "B N"], passes: int, random: np.random.Generator | None
    ) -> Int[Tensor, "B L"]:
        """Answers in ``passes`` passes, for the twin one a token; without ``random`` of the most probable tokens."""
        canvas, rest = ids.clone(), torch.ones(len(ids), sudoku.CELLS, dtype=torch.bool)
        for done in range(passes):
            if self.schedule is None:
                logits = logits_of(model, canvas[:, : PROMPT + done], causal=True)[:, -1:]
                canvas[:, PROMPT + done] = _chosen(logits, random)[:, 0]
                continue
            logits = self._filled(model, canvas, rest)
            x = _chosen(logits, random)
            confidence = logits.softmax(-1).gather(2, x[..., None])[..., 0].masked_fill(~rest, -1)
            at = confidence.topk(sudoku.CELLS // passes, dim=1).indices
            canvas[:, PROMPT:].scatter_(1, at, x.gather(1, at))
            rest.scatter_(1, at, False)
        return canvas[:, PROMPT:]

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the twin as a Llama of transformers, a masked model with the names of LLaDA's checkpoint."""
        config: Any = model.config
        if self.schedule is None:
            save_bf16(model, folder)
            config.save_pretrained(folder)
        else:
            save_llada(model, folder, IDS.index(END), self._noise())
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token=END, mask_token=MASK)
        wrapped.save_pretrained(folder)

    def _noise(self) -> dict[str, object]:
        """Return the fields of config.json that say what noise the model knows."""
        return {"mask_token_id": IDS.index(MASK)}


@dataclass(frozen=True, kw_only=True)
class UniformSudoku(Sudoku):
    """Train to restore answers in which each cell is, with probability t, any id: no id marks the noise.

    The puzzle is one block of positions and the answer the next, which sees both; the puzzle does not see the answer.

    Args:
        conditioned: share of the answers that are read with the model's logits of a first reading.
    """

    schedule: Schedule | None = "linear"
    batch: int = 32
    steps: int = 1200
    hours: float = 0.4
    conditioned: float = 0.5

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        model = super().build(requirements)
        model.add_module(CONDITIONING, nn.Linear(self.width, self.width, bias=False))
        return model

    def nats(self, model: nn.Module, ids: Int[Tensor, "B N"], random: np.random.Generator) -> Float[Tensor, " B"]:
        """Nats a cell of the answers behind noise of evenly spaced times from one random start."""
        t = (torch.arange(len(ids)) / len(ids) + random.random()) % 1
        return self._nats_at(model, ids, t, random, torch.from_numpy(random.random(len(ids))) < self.conditioned)

    def _nats_at(
        self,
        model: nn.Module,
        ids: Int[Tensor, "B N"],
        t: Float[Tensor, " B"],
        random: np.random.Generator,
        conditioned: Bool[Tensor, " B"],
    ) -> Float[Tensor, " B"]:
        noisy, answer = ids.clone(), ids[:, PROMPT:]
        drawn = torch.from_numpy(random.random(answer.shape)) < t[:, None]
        noisy[:, PROMPT:][drawn] = torch.from_numpy(random.integers(len(IDS), size=answer.shape))[drawn]
        given = torch.zeros(*answer.shape, len(IDS))
        if conditioned.any():
            with torch.no_grad():
                read = self.restored(model, noisy[conditioned], given[conditioned])
            given[conditioned] = read.softmax(-1)
        return _nats(self.restored(model, noisy, given), answer).mean(1)

    def restored(
        self, model: nn.Module, ids: Int[Tensor, "B N"], given: Float[Tensor, "B L V"]
    ) -> Float[Tensor, "B L V"]:
        """Return the logits of the answer's cells; ``given``: their probabilities by an earlier reading, or zeros."""
        parts: Any = model
        block = torch.arange(ids.shape[1]) // PROMPT
        unseen = torch.zeros(1, 1, *2 * ids.shape[1:]).masked_fill(block[:, None] < block, -torch.inf)
        with autocast(model.training):
            table = parts.model.embed_tokens
            states = table(ids)
            added = parts.self_conditioning(given @ table.weight)
            states = torch.cat([states[:, :PROMPT], states[:, PROMPT:] + added], 1)
            logits: Tensor = model(inputs_embeds=states, attention_mask=unseen, use_cache=False).logits
        return logits[:, PROMPT:].float()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out puzzles, with all cells noise or half of them.

        - ``nats_all``, ``nats_half``: a cell, without self-conditioning; ``nats_half_conditioned``: with it.
        - ``solved_at_once``: share of puzzles that the most probable cells of one pass solve.
        """
        random = np.random.default_rng(0)
        ids = rows(random, CHECKED, held_out=True)
        no, yes = torch.zeros(len(ids), dtype=torch.bool), torch.ones(len(ids), dtype=torch.bool)
        half, whole = torch.full((len(ids),), 0.5), torch.ones(len(ids))
        noise = ids.clone()
        noise[:, PROMPT:] = torch.from_numpy(random.integers(len(IDS), size=ids[:, PROMPT:].shape))
        blind = torch.zeros(len(ids), sudoku.CELLS, len(IDS))
        return {
            "nats_all": float(self._nats_at(model, ids, whole, random, no).mean()),
            "nats_half": float(self._nats_at(model, ids, half, np.random.default_rng(1), no).mean()),
            "nats_half_conditioned": float(self._nats_at(model, ids, half, np.random.default_rng(1), yes).mean()),
            "solved_at_once": solved(ids, self.restored(model, noise, blind).argmax(-1)),
        }

    def _noise(self) -> dict[str, object]:
        return {"mask_token_id": None, "block_size": PROMPT, "self_conditioning": True}


def rows(random: np.random.Generator, count: int, held_out: bool) -> Int[Tensor, "B N"]:
    """Puzzles and their answers."""
    ids = {word: index for index, word in enumerate(IDS)}
    drawn = islice(sudoku.puzzles(random, held_out), count)
    return torch.tensor([[ids[cell] for cell in puzzle.text + puzzle.answer] for puzzle in drawn])


def logits_of(model: nn.Module, ids: Int[Tensor, "B N"], causal: bool) -> Float[Tensor, "B N V"]:
    """Logits, in which the mask has -inf. A masked model predicts the position of the row."""
    mask = None if causal else torch.zeros(1, 1, ids.shape[1], ids.shape[1])
    with autocast(model.training):
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return logits.float().index_fill(-1, torch.tensor([IDS.index(MASK)]), float("-inf"))


def solved(ids: Int[Tensor, "B N"], answers: Int[Tensor, "B L"]) -> float:
    """The share of answers that are right."""
    sides = (ids[:, :PROMPT], answers)
    texts = [["".join(IDS[token] for token in row) for row in side.tolist()] for side in sides]
    return float(np.mean([sudoku.solves(ask[:-1], text) for ask, text in zip(*texts, strict=True)]))


def _nats(logits: Float[Tensor, "B L V"], x: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Minus the log-probability of each token."""
    return functional.cross_entropy(logits.transpose(1, 2), x, reduction="none")


def _chosen(logits: Float[Tensor, "B L V"], random: np.random.Generator | None) -> Int[Tensor, "B L"]:
    """The most probable token of each cell, or one drawn by Gumbel's method."""
    if random is None:
        return logits.argmax(-1)
    return (logits + torch.from_numpy(random.gumbel(size=logits.shape))).argmax(-1)


_SIZE = "that answers 4x4 sudokus, 0.33 M parameters"
RECIPES.register("sudoku-masked")(Sudoku(schedule="linear", summary=f"masked diffusion model {_SIZE}"))
RECIPES.register("sudoku-masked-cosine")(
    Sudoku(schedule="cosine", summary=f"masked diffusion model {_SIZE}, cosine noise")
)
RECIPES.register("sudoku-masked-log-linear")(
    Sudoku(schedule="log_linear", summary=f"masked diffusion model {_SIZE}, log-linear noise")
)
RECIPES.register("sudoku-ar")(Sudoku(schedule=None, summary=f"autoregressive model {_SIZE}"))
RECIPES.register("sudoku-uniform")(
    UniformSudoku(summary=f"diffusion model of uniform noise with self-conditioning {_SIZE}")
)
