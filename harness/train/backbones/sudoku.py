"""A masked diffusion model that answers 4x4 sudokus, and its autoregressive twin: same puzzles, tokens and size.

Source: Nie et al. 2025, arXiv:2502.09992 (LLaDA), eq. 5 and Algorithm 2: of a puzzle and its answer, the answer alone
is masked. Schedules and weight: Abulkhanov et al., Cross-Regression, section 3, whose alpha' / (1 - alpha) is negative
as printed and wants a minus.
Symbols: alpha(t) chance that a token is kept at time t, B puzzles of a step, L cells of an answer, V ids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from harness.backbones.masked.llada_dream import BLOCK, LLADA, PLAIN
from harness.registry import RECIPES
from harness.synthetic import sudoku
from harness.train.loop import Recipe, save_bf16

END, MASK = "<|end|>", "<|mask|>"
IDS = (END, *sudoku.DIGITS, sudoku.HIDDEN, sudoku.ASK, MASK)
PROMPT = sudoku.CELLS + 1
CONTEXT = 64
CHECKED = 256
"""Held-out puzzles behind the figures of a card."""
EARLIEST = 1e-3
"""The least time that is drawn; LLaDA's epsilon."""
DECAY = -math.log(1e-3)
"""Lambda of the log-linear schedule: a thousandth of the tokens is kept at t = 1."""

Schedule = Literal["linear", "cosine", "log_linear"]


class Noise(NamedTuple):
    """At a time: the chance that a token is masked, 1 - alpha, and a masked token's weight, -alpha' / (1 - alpha)."""

    masked: Float[Tensor, " B"]
    weight: Float[Tensor, " B"]


SCHEDULES: dict[Schedule, Callable[[Tensor], Noise]] = {
    "linear": lambda t: Noise(t, 1 / t),
    "cosine": lambda t: Noise((math.pi / 2 * t).sin() ** 2, math.pi / (math.pi / 2 * t).tan()),
    "log_linear": lambda t: Noise(-(-DECAY * t).expm1(), DECAY / (DECAY * t).expm1()),
}
"""alpha = 1 - t, whose weight is LLaDA's 1 / t; cos^2(pi t / 2); exp(-lambda t).

All three are one bound on the likelihood: over t, a masked token's weight is that of 1 / p at a chance p to be masked
that is even from 0 to 1. They differ in how often each p is seen, and so in the noise of the gradient.
"""


def tokenizer() -> Tokenizer:
    """A character a token; ids are those of ``IDS``."""
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(IDS)}, unk_token=END))
    made.add_special_tokens([END, MASK])
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return made


@dataclass(frozen=True, kw_only=True)
class Sudoku(Recipe):
    """Trained on puzzles of `harness.synthetic.sudoku`, drawn anew for every step; held out by a hash of their text.

    Args:
        schedule: of the noise; None: the autoregressive twin, which reads to the left alone and is trained on the
            next token. width, layers, heads, inner: of the model. batch: puzzles of a step.
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
    source = "4x4 sudokus of this project (harness/worlds/sudoku.py), Apache-2.0"
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
        """Of an answer, nats a token: minus the log-probability of the twin's, an unbiased bound on it of the other's.

        Times are spread evenly over the rows from one random start, which leaves each uniform.
        """
        answer = ids[:, PROMPT:]
        if self.schedule is None:
            found = laws(model, ids[:, :-1], causal=True)[:, PROMPT - 1 :]
            return _missed(found, answer).mean(1)
        t = (torch.arange(len(ids)) / len(ids) + random.random()) % 1 * (1 - EARLIEST) + EARLIEST
        noise = SCHEDULES[self.schedule](t)
        masked = torch.from_numpy(random.random(answer.shape)) < noise.masked[:, None]
        return (_missed(self._filled(model, ids, masked), answer) * masked * noise.weight[:, None]).mean(1)

    def _filled(self, model: nn.Module, ids: Int[Tensor, "B N"], masked: Bool[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Logits of the answer's cells, some of which are hidden."""
        read = ids.clone()
        read[:, PROMPT:][masked] = IDS.index(MASK)
        return laws(model, read, causal=False)[:, PROMPT:]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Nats a token, and the share of held-out puzzles solved one token a pass: the likeliest, and drawn at T = 1.

        A masked model fills the cell of largest probability first; ``solved_at_once`` is its answer of one pass.
        """
        random = np.random.default_rng(0)
        ids = rows(random, CHECKED, held_out=True)
        found = {"nats": float(self.nats(model, ids, random).mean())}
        for name, drawn in (("solved_greedy", None), ("solved_sampled", np.random.default_rng(1))):
            found[name] = solved(ids, self.decode(model, ids, sudoku.CELLS, drawn))
        if self.schedule is not None:
            found["solved_at_once"] = solved(ids, self.decode(model, ids, 1, None))
        return found

    def decode(
        self, model: nn.Module, ids: Int[Tensor, "B N"], passes: int, random: np.random.Generator | None
    ) -> Int[Tensor, "B L"]:
        """Answers in so many passes (the twin: one a token); with ``random`` drawn from the laws, else their modes."""
        canvas, rest = ids.clone(), torch.ones(len(ids), sudoku.CELLS, dtype=torch.bool)
        for done in range(passes):
            if self.schedule is None:
                logits = laws(model, canvas[:, : PROMPT + done], causal=True)[:, -1:]
                canvas[:, PROMPT + done] = _chosen(logits, random)[:, 0]
                continue
            logits = self._filled(model, canvas, rest)
            x = _chosen(logits, random)
            sure = logits.softmax(-1).gather(2, x[..., None])[..., 0].masked_fill(~rest, -1)
            at = sure.topk(sudoku.CELLS // passes, dim=1).indices
            canvas[:, PROMPT:].scatter_(1, at, x.gather(1, at))
            rest.scatter_(1, at, False)
        return canvas[:, PROMPT:]

    def export(self, model: nn.Module, folder: Path) -> None:
        """The twin as a Llama of transformers; the masked one under LLaDA's names, as LLaDA is published."""
        config: Any = model.config
        if self.schedule is None:
            save_bf16(model, folder)
            config.save_pretrained(folder)
        else:
            held = {_published(name): value.bfloat16() for name, value in model.state_dict().items()}
            save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "model.safetensors").chmod(0o644)  # it is written for the owner alone
            (folder / "config.json").write_text(json.dumps(_llada(config), indent=1) + "\n", encoding="utf-8")
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token=END, mask_token=MASK)
        wrapped.save_pretrained(folder)


def rows(random: np.random.Generator, count: int, held_out: bool) -> Int[Tensor, "B N"]:
    """Puzzles and their answers."""
    known = {word: index for index, word in enumerate(IDS)}
    drawn = islice(sudoku.puzzles(random, held_out), count)
    return torch.tensor([[known[cell] for cell in puzzle.text + puzzle.answer] for puzzle in drawn])


def laws(model: nn.Module, ids: Int[Tensor, "B N"], causal: bool) -> Float[Tensor, "B N V"]:
    """Logits; those of a masked model are of their own position, and never of the mask."""
    sees = None if causal else torch.zeros(1, 1, ids.shape[1], ids.shape[1])
    with torch.autocast("cpu", torch.bfloat16, enabled=model.training):
        logits: Tensor = model(input_ids=ids, attention_mask=sees, use_cache=False).logits
    return logits.float().index_fill(-1, torch.tensor([IDS.index(MASK)]), float("-inf"))


def solved(ids: Int[Tensor, "B N"], answers: Int[Tensor, "B L"]) -> float:
    """The share of answers that are right."""
    texts = [["".join(IDS[token] for token in row) for row in part.tolist()] for part in (ids[:, :PROMPT], answers)]
    return float(np.mean([sudoku.solves(ask[:-1], text) for ask, text in zip(*texts, strict=True)]))


def _missed(logits: Float[Tensor, "B L V"], x: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Minus the log-probability of each token."""
    return functional.cross_entropy(logits.transpose(1, 2), x, reduction="none")


def _chosen(logits: Float[Tensor, "B L V"], random: np.random.Generator | None) -> Int[Tensor, "B L"]:
    """The likeliest token of each law, or one drawn from it (Gumbel's way)."""
    if random is None:
        return logits.argmax(-1)
    return (logits + torch.from_numpy(random.gumbel(size=logits.shape))).argmax(-1)


def _published(name: str) -> str:
    """A tensor's name in LLaDA's checkpoint."""
    ours, blocks = {own: theirs for theirs, own in LLADA.items()}, {own: theirs for theirs, own in BLOCK.items()}
    stem, _, kind = name.rpartition(".")
    if stem in ours:
        return f"{ours[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"model.transformer.blocks.{index}.{blocks[part]}.{kind}"


def _llada(config: Any) -> dict[str, Any]:
    """LLaDA's config.json of a Llama of this shape."""
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        **PLAIN,
        "vocab_size": config.vocab_size,
        "embedding_size": config.vocab_size,
        "d_model": config.hidden_size,
        "mlp_hidden_size": config.intermediate_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "max_sequence_length": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "mask_token_id": IDS.index(MASK),
        "eos_token_id": IDS.index(END),
    }


_SIZE = "that answers 4x4 sudokus, 0.33 M parameters"
RECIPES.register("sudoku-masked")(Sudoku(schedule="linear", summary=f"masked diffusion model {_SIZE}"))
RECIPES.register("sudoku-masked-cosine")(
    Sudoku(schedule="cosine", summary=f"masked diffusion model {_SIZE}, cosine noise")
)
RECIPES.register("sudoku-masked-log-linear")(
    Sudoku(schedule="log_linear", summary=f"masked diffusion model {_SIZE}, log-linear noise")
)
RECIPES.register("sudoku-ar")(Sudoku(schedule=None, summary=f"autoregressive model {_SIZE}"))
