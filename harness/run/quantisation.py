"""What the rounding of a target's weights costs: its distributions beside those of the weights as they are.

Verdicts of a quantised cell are relative to the rounded weights, so this is measured apart, after all decodes: on
outputs of the cell's own autoregressive baseline, one pass of each model an output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import plain
from stridebench.harness.errors import StrideError
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell
from stridebench.harness.run.loading import LoadedGroup

OUTPUTS = 4
"""Outputs that are read; each is one pass of both models."""
FORMAT = re.compile(r"weights=(int\d|nf4)")


def format_of(name: str) -> str | None:
    """The format of a backbone's weights, by its name; None: they are not quantised."""
    base = plain(name)
    pairs = name[len(base) + 1 :].split(",") if name != base else []
    return next((match[1] for pair in pairs if (match := FORMAT.fullmatch(pair))), None)


def adapted(cell: Cell) -> str | None:
    """The format of the weights to which a cell adds an adapter that was trained for full ones; None: it does not."""
    adapts = any(kind == "adapter" for kind, _ in cell.method.components)
    return format_of(cell.backbone) if adapts else None


def facts(cell: Cell) -> dict[str, Any]:
    """The entry of a cell's meta about its adapter; none where its weights are full or it has none."""
    form = adapted(cell)
    return {"adapter_on": form} if form else {}


def notes(cells: Sequence[Cell], device: str) -> list[str]:
    """A line for each method that adds an adapter to rounded weights, and one for a type in which these gain no speed.

    Args:
        cells: of one backbone and type.
    """
    cell = cells[0]
    form, name = format_of(cell.backbone), plain(cell.backbone)
    methods = dict.fromkeys(cell.name for cell in cells if adapted(cell))
    lines = [
        f"{method}: its adapter was trained for full weights and is added to the {form} ones of {name}, which may cost "
        f"acceptance"
        for method in methods
    ]
    if form in ("int8", "int4") and device == "cpu" and cell.dtype != "bf16":
        lines.append(
            f"the {form} weights of {name} are rounded and multiplied in {cell.dtype}, which gains no speed; "
            f"kernels for them compute in bf16: --dtype bf16"
        )
    return lines


def unquantised(name: str) -> str | None:
    """The name of the same backbone without its format of weights; None: it has none."""
    base = plain(name)
    pairs = name[len(base) + 1 :].split(",") if name != base else []
    kept = [pair for pair in pairs if not FORMAT.fullmatch(pair)]
    if len(kept) == len(pairs):
        return None
    return base + (f":{','.join(kept)}" if kept else "")


def cost(group: LoadedGroup) -> dict[str, Any]:
    """Entries of the meta of the group's cells; none where the weights are not quantised or there is no output.

    ``quantisation_kl``: KL(full, quantised) a token, nats. ``quantisation_agreement``: share of tokens whose most
    likely id is the same.
    """
    name = unquantised(group.backbone.name)
    cells = [cell for cell in group.cells if cell.role == "baseline"]
    if name is None or not cells:
        return {}
    outputs = _outputs(group, cells[0])
    if not outputs:
        return {}
    group.options.progress.say(f"reading {len(outputs)} outputs with the weights of {name} as they are")
    try:
        full = presets.load(name, group.backbone.dtype, group.backbone.device, group.options.fetch)
    except StrideError as error:
        return {"quantisation_reason": str(error)}
    kl, same = distance(full, group.backbone, outputs)
    return {"quantisation_kl": kl, "quantisation_agreement": same, "quantisation_outputs": len(outputs)}


def _outputs(group: LoadedGroup, cell: Cell) -> list[tuple[Prompt, Sequence[int]]]:
    prompts = {prompt.id: prompt for prompt in group.plan.prompts[cell.task]}
    samples = [sample for sample in group.store.pending(cell.id) if sample.status == "ok" and sample.tokens]
    return [(prompts[sample.prompt], sample.tokens) for sample in samples[:OUTPUTS]]


@torch.inference_mode()
def distance(full: Backbone, coarse: Backbone, outputs: Sequence[tuple[Prompt, Sequence[int]]]) -> tuple[float, float]:
    """Mean KL(full, coarse) a token at T = 1, nats, and how often both have the same most likely token."""
    from stridebench.harness.audit.output import target_logits

    divergence, same = [], []
    for prompt, output in outputs:
        p, q = (target_logits(side, prompt, output).float().log_softmax(-1) for side in (full, coarse))
        terms = p.exp() * (p - q)
        divergence.append(terms.where(p > -torch.inf, 0.0).sum(-1))  # a forced token leaves one id
        same.append(p.argmax(-1) == q.argmax(-1))
    return float(torch.cat(divergence).mean()), float(torch.cat(same).float().mean())
