"""What an adapter does to a model, layer by layer: hidden rows of a text without the adapter and with it on.

Source: Abulkhanov et al., Cross-Regression, Fig. 3, "per-layer output from vanilla Llama-2-7B-chat (left) and
LoRA-tuned (right)", averaged over generations from 50 prompts of GSM8K. The paper does not say which quantity it
draws, nor which entries the tuned rows read. Three are measured: the L2 norm of a row, its cosine to the row of the
layer before, and the cosine of an entry's two rows. How often a layer's row already predicts the last layer's token is
not measured: the head reads normed rows, and no backbone exposes its last norm.
Layer 0 is the embedding, layer l what enters layer l. Layer L is the normed row that the head reads, so its norm has
another scale. Axes: N entries, T of them measured, L layers, E width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.record import stats
from stridebench.harness.train.teacher import Passage, Teacher

NEEDS = frozenset({Requirement.HIDDEN, Requirement.GATE, Requirement.TREE_MASK})
"""Requirements on the backbone."""
MEASURES = ("norm_vanilla", "norm_adapter", "before_vanilla", "before_adapter", "cosine")
"""Norms; cosines to the layer before, NaN at layer 0; cosine of the two rows of an entry."""

Reading = Literal["beside", "alone"]
"""Entries that a row with the adapter on attends to. beside: the text's entries without the adapter, and itself, as row
0 of a decode's predictive stream does. alone: entries with the adapter on, from the first: the tuned model itself."""


@dataclass(frozen=True, eq=False)
class Sides:
    """Hidden rows of the same T entries, without the adapter and with it on."""

    vanilla: Float[Tensor, "T L+1 E"]
    adapter: Float[Tensor, "T L+1 E"]


def measure(backbone: Backbone, adapter: Any, prompts: Sequence[Prompt], new: int, reading: Reading) -> pd.DataFrame:
    """The measures of each prompt: means over the tokens of its greedy continuation.

    Args:
        new: tokens a prompt; fewer if the text ends before.

    Returns:
        ``MEASURES`` by (layer, prompt, repetition).
    """
    draws = SeededDraws(0, "layers", "", 0, backbone.device)
    passages = Teacher(backbone).continued(prompts, new, Sampling(0.0), draws)
    by_prompt = {
        (prompt.id, 0): measured(sides(backbone, adapter, passage, reading))
        for prompt, passage in zip(prompts, passages, strict=True)
    }
    return pd.concat(by_prompt, names=["prompt", "repetition"]).reorder_levels(["layer", "prompt", "repetition"])


@torch.inference_mode()
def sides(backbone: Backbone, adapter: Any, passage: Passage, reading: Reading) -> Sides:
    """Both rows of the T entries that predicted the new tokens: from the prompt's last entry to the last but one."""
    ids = torch.tensor(passage.tokens[:-1], device=backbone.device)
    places, first = torch.arange(len(ids), device=ids.device), passage.start - 1
    taps = tuple(range(backbone.capabilities.layers + 1))
    opening = backbone.open(Prompt("", tokens=passage.tokens[: passage.start], condition=passage.condition))
    text = opening.cache()
    vanilla = _hidden(text, Window(ids, places, 0, None, 0, taps))[first:]
    if reading == "alone":
        on = torch.ones_like(ids, dtype=torch.bool)
        tuned = _hidden(opening.cache(), Window(ids, places, 0, None, 0, taps, gate=on, adapter=adapter))[first:]
        return Sides(vanilla, tuned)
    parts = torch.split(places[first:], backbone.capabilities.context - len(ids))
    return Sides(vanilla, torch.cat(list(_beside(text, ids, parts, taps, adapter))))


def _beside(
    text: Cache, ids: Int[Tensor, " N"], parts: Sequence[Int[Tensor, " P"]], taps: tuple[int, ...], adapter: Any
) -> Iterator[Float[Tensor, "P L+1 E"]]:
    """Rows with the adapter on at these positions; the text's entries stay as they are."""
    places = torch.arange(len(ids), device=ids.device)
    for at in parts:
        on = torch.ones_like(at, dtype=torch.bool)
        sees = torch.cat([places < at[:, None], on.diag()], 1)
        yield _hidden(text, Window(ids[at], at, 0, sees, 0, taps, gate=on, adapter=adapter))
        text.keep(len(ids))


def _hidden(cache: Cache, window: Window) -> Float[Tensor, "N L+1 E"]:
    hidden = cache.extend(window).hidden
    assert hidden is not None, "the window has taps"
    return hidden[:, 0]


def measured(rows: Sides) -> pd.DataFrame:
    """``MEASURES`` by layer, means over the entries."""
    readings = {"vanilla": rows.vanilla.double(), "adapter": rows.adapter.double()}
    measures = {"cosine": functional.cosine_similarity(readings["vanilla"], readings["adapter"], -1)}
    for side, x in readings.items():
        measures[f"norm_{side}"] = x.norm(dim=-1)
        before = functional.cosine_similarity(x[:, 1:], x[:, :-1], -1)
        measures[f"before_{side}"] = functional.pad(before, (1, 0), value=float("nan"))
    means = {name: measures[name].mean(0).cpu().numpy() for name in MEASURES}
    return pd.DataFrame(means).rename_axis("layer")


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a layer: each measure's mean over prompts, and its ``_low``, ``_high``, ``_n`` (see `record.stats`)."""
    rows = []
    for layer, values in frame.groupby(level="layer"):
        row: dict[str, Any] = {"layer": layer}
        for name in MEASURES:
            interval = stats.mean(values[name].droplevel("layer"))
            bounds = {} if interval is None else asdict(interval)
            row[name] = bounds.get("estimate")
            row |= {f"{name}_{end}": bounds.get(end) for end in ("low", "high", "n")}
        rows.append(row)
    return pd.DataFrame(rows).astype({name: float for name in MEASURES})
