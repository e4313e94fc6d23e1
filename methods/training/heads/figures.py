"""The export of trained heads, and how often they are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from stridebench.harness.train.loop import round_to_bf16, save_bf16
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.examples import Examples, hits, lead, shares
from stridebench.methods.training.heads.heads_in_training import Training


def save_heads(heads: Heads, folder: Path) -> None:
    """Write heads in bf16 with their configuration."""
    round_to_bf16(heads.parameters())
    save_bf16(heads, folder)
    heads.config.write(folder)


def save(model: Training, folder: Path) -> None:
    """Write heads in bf16; their configuration says how often each of their best tokens was right."""
    round_to_bf16(model.heads.parameters())
    accuracies = shares(hits(model.heads, model.check_on), model.check_on)
    ranks = tuple(tuple(round(share, 4) for share in row) for row in accuracies)
    model.heads.config = replace(model.heads.config, ranks=ranks)
    save_heads(model.heads, folder)


def figures(model: Training) -> dict[str, float]:
    """Figures on development passages.

    - ``top1_head*``, ``top3_head*``: how often the head's best token, or one of its three best ones, is right.
    - ``_untrained``: the same of new heads, which predict what the target predicts for the next token.
    - ``_shuffled``: the same of heads whose weights have their entries in another order.
    - ``_ngram``: the same of an n-gram of the training passages.
    - ``_lead``: lower end of the 95 % interval of the gain of ``top1`` over each control.
    """
    heads = {"": model.heads, "_untrained": model.control(), "_shuffled": model.control(shuffled=True)}
    correct = {key: hits(variant, model.check_on) for key, variant in heads.items()}
    correct |= {} if model.ngram_hits is None else {"_ngram": model.ngram_hits}
    return compared(correct, model.check_on)


def compared(correct: Mapping[str, Tensor], examples: Examples) -> dict[str, float]:
    """`hits` of the heads (with key "") and of their controls, as the figures of a card."""
    table = {"rows": float(len(examples.rows))}
    for key, hit in correct.items():
        for head, share in enumerate(shares(hit, examples), 1):
            table |= {f"top1_head{head}{key}": share[0], f"top3_head{head}{key}": sum(share[:3])}
        if key:
            gains = lead(correct[""], hit, examples)
            table |= {f"top1_head{head}{key}_lead": gain for head, gain in enumerate(gains, 1)}
    return table
