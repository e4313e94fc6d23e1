"""What is exported of heads that were trained, and how often they are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from harness.train.loop import save_bf16
from methods.training.heads.examples import Examples, hits, lead, shares
from methods.training.heads.heads_in_training import Training


@torch.no_grad()
def save(model: Training, folder: Path) -> None:
    """The heads, rounded to bf16 first, so that what is measured is what is shipped."""
    for weight in model.heads.parameters():
        weight.copy_(weight.bfloat16())
    known = shares(hits(model.heads, model.check_on), model.check_on)
    model.heads.config = replace(model.heads.config, ranks=tuple(tuple(round(s, 4) for s in row) for row in known))
    save_bf16(model.heads, folder)
    model.heads.config.write(folder)


def figures(model: Training) -> dict[str, float]:
    """On development passages: of each head, how often its best token and one of its three best are right.

    Beside ``_untrained`` heads, which say what the target says of the next token, those of ``_shuffled``
    weights, and an ``_ngram`` of the training's passages; ``_lead``: lower end of the
    95 % interval of what the best token gains over each.
    """
    made = {"": model.heads, "_untrained": model.control(), "_shuffled": model.control(shuffled=True)}
    right = {key: hits(heads, model.check_on) for key, heads in made.items()}
    right |= {} if model.by_counts is None else {"_ngram": model.by_counts}
    return beside(right, model.check_on)


def beside(right: Mapping[str, Tensor], checked: Examples) -> dict[str, float]:
    """`hits` of the heads (under "") and of their controls, as the figures of a card."""
    found = {"rows": float(len(checked.rows))}
    for key, hit in right.items():
        for head, share in enumerate(shares(hit, checked), 1):
            found |= {f"top1_head{head}{key}": share[0], f"top3_head{head}{key}": sum(share[:3])}
        if key:
            low = lead(right[""], hit, checked)
            found |= {f"top1_head{head}{key}_lead": gain for head, gain in enumerate(low, 1)}
    return found
