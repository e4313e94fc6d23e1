"""Audits the tokens in a file: anybody's outputs against the model and the sampling that they claim."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from stridebench.harness.audit.laws import MARGINS
from stridebench.harness.audit.output import bets_on, drafter_logits, read_outputs, target_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.capabilities import UNORDERED
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.registry import BACKBONES


@dataclass(frozen=True)
class ClaimedSource:
    """The model and the sampling that tokens claim to be drawn from.

    Args:
        backbone: the model that made the tokens.
        temperature: above 0.
        top_k: 0 keeps all ids.
        top_p: 1 keeps all ids.
        min_p: 0 keeps all ids.
        drafter: the model that drafted, if one did; bets then use its distributions too.
        margin: no bet is made this near to a cut of top-k or top-p, in logits. Default: that of bf16.
        dtype: the distributions are computed in this type. Default: the backbone's.
    """

    backbone: str
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    drafter: str | None = None
    margin: float | None = None
    dtype: str | None = None


def audit_file(path: Path, claimed: ClaimedSource, device: str = "cpu", fetch: bool = True) -> tuple[str, Audit]:
    """Audit the outputs in a file of JSON lines such as ``{"prompt_ids": [1, 2], "output_ids": [3, 4]}``.

    A line may name the number of tokens that each decode step emitted, such as ``"emitted": [1, 1]``.

    Returns:
        The type in which the distributions were computed, and the audit.

    Raises:
        UsageError: a value is wrong, or a line of the file is; nothing is computed before both are checked.
    """
    if not math.isfinite(claimed.temperature) or claimed.temperature <= 0:
        raise UsageError(f"temperature is {claimed.temperature:g}: at 0 nothing is drawn; give a finite number above 0")
    sampling = Sampling(claimed.temperature, claimed.top_k, claimed.top_p, min_p=claimed.min_p)
    margin = MARGINS["bf16"] if claimed.margin is None else claimed.margin
    if not 0 <= margin < math.inf:
        raise UsageError(f"margin is {margin:g}; give a finite distance of at least 0")
    name = claimed.backbone
    dtype = claimed.dtype or BACKBONES.get(presets.resolve(name).adapter).default_dtype
    backbone = presets.load(name, dtype, device, fetch)
    if UNORDERED & backbone.capabilities.meets:
        raise UsageError(
            f"{name} is a masked or an order-free model, which gives no distribution of a next token; nothing can be "
            f"audited"
        )
    outputs = read_outputs(path, backbone.capabilities)
    load_drafter = cache(partial(presets.drafter, backbone, fetch=fetch))
    bets = []
    with torch.inference_mode():
        for prompt, output, emitted in outputs:
            logits = target_logits(backbone, prompt, output)
            drafts = None
            if claimed.drafter is not None:
                drafts = drafter_logits(backbone, load_drafter, claimed.drafter, prompt, output)
            bets.append(bets_on(logits, [*prompt, *output], sampling, margin, drafts, emitted=emitted))
    return backbone.dtype, audit(bets)


def audit_figures(result: Audit) -> dict[str, object]:
    """Return the verdict and the figures of an audit as one row."""
    return {
        "verdict": result.verdict,
        "e_value": math.exp(result.log_e),
        "log10_e": result.log_e / math.log(10),
        "tokens": result.tokens,
        "near_cut": result.near,
        "impossible": result.impossible,
        "visible_tv": result.visible_tv,
        "visible": result.visible,
        "needed": result.needed,
        "best": result.best,
        "threshold": result.threshold,
    }
