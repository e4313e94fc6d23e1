"""One definition of every number: the step, the sample, and each metric as a ratio of two totals.

A metric is Σ numerator / Σ denominator over samples, so that a bootstrap over prompts, a paired difference
and a table all read the same definition. Totals are per sample; the raw steps stay in the store, so that
any other tool's convention can be derived by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pandas as pd

from harness.errors import ContractError


@dataclass(frozen=True)
class Step:
    """One call of a method's ``step``; times in nanoseconds.

    Args:
        nfe: target forward passes.
        draft_nfe: passes of drafter sessions.
        rows: entries fed to the target, re-fed token included.
        drafted: nodes proposed.
        tested: nodes reached by the walk: those accepted, and the one rejected.
        accepted: drafted nodes kept.
        expected: mean of accepted given the draft, over the acceptance tests alone.
        emitted: tokens emitted:
            - accepted + 1 in general: the last is the bonus or the correction token;
            - accepted, where the last accepted draft is one that no pass has computed;
            - the number of positions filled, on a canvas.
        forced: emitted tokens for which only one value was allowed.
        overshoot: emitted past the budget or the end of text, cut off the output.
        reused: drafted nodes carried over unchanged from the step before.
        forced_drafted, forced_tested, forced_accepted: those of drafted, tested and accepted for which only one value
            was allowed; acceptance leaves them out.
        levels: depth of the deepest drafted node, from 1; 0 where nothing is drafted.
        resampled: of the positions filled, those whose draft was replaced by a draw of the target's.
        wall_ns: the step on the host's clock.
        device_ns: the step on the device's clock (the same on a CPU).
        draft_ns: inside drafter passes.
        target_ns: inside target passes.
        verify_ns: from the end of the target's pass to the acceptance on the host.
        host_ns: the rest.
        served: decodes of the batch that its last target pass served, its own included; 1 where it decodes alone.
        ranks: number of earlier siblings of each accepted node of a tree, from 0; none in a chain.
        energies: log p(x) - log q(x) in nats for every draft x that was compared with the target, reached or not, by
            position; q is the distribution that it was drawn from. Only of methods that test by it.
    """

    nfe: int
    draft_nfe: int
    rows: int
    drafted: int
    tested: int
    accepted: int
    expected: float
    emitted: int
    forced: int
    overshoot: int
    reused: int
    wall_ns: int
    device_ns: int
    draft_ns: int
    target_ns: int
    verify_ns: int
    host_ns: int
    forced_drafted: int = 0
    forced_tested: int = 0
    forced_accepted: int = 0
    resampled: int = 0
    levels: int = 0
    served: int = 1
    ranks: tuple[int, ...] = ()
    energies: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One decoded prompt: what was timed is what is scored.

    Args:
        prompt: the prompt's id.
        repetition: 0, 1, ...; each has a seed of its own.
        warmup: kept, never counted.
        status: "ok" or "failed".
        error: the failure in one line.
        tokens: output ids, end-of-text included, cut at the budget.
        text: decoded, where there is a tokenizer.
        prefill_ns: reading the prompt, drafters included; not in any step.
        open_ns: the encoder, before that.
        output: the file of a picture or mesh, below the run folder; "" where the output is a text.
        logprobs: log p(token) of the target at T = 1 without top-k or top-p, one a token (natural log).
        agreement: longest common prefix with the baseline's output / the longer length; T = 0 only.
        diverged_at: first index that differs from the baseline's output; None: equal, or T > 0.
        margin: the target's logit of the baseline's token less that of this output's token, at ``diverged_at``.
        scores: the task's own, by name.
        category: the task's, for tables by category.
        regions: what the task says lies in each cell of a picture, in raster order.
        stages: nanoseconds of the steps by the names that a method gives to stages of them (`Run.timed`).
        leading: the largest probabilities at T = 1, equally many for each token; only of a baseline's picture.
    """

    prompt: str
    repetition: int
    warmup: bool
    status: str
    error: str | None = None
    category: str = ""
    prompt_tokens: int = 0
    tokens: tuple[int, ...] = ()
    text: str = ""
    prefill_ns: int = 0
    logprobs: tuple[float, ...] = ()
    agreement: float | None = None
    diverged_at: int | None = None
    margin: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    open_ns: int = 0
    output: str = ""
    regions: tuple[str, ...] = ()
    stages: dict[str, int] = field(default_factory=dict)
    leading: tuple[float, ...] = ()


@dataclass(frozen=True)
class Record:
    """A sample and its steps: what a store writes at once."""

    sample: Sample
    steps: tuple[Step, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"sample": asdict(self.sample), "steps": [asdict(step) for step in self.steps]}

    @staticmethod
    def of(plain: dict[str, Any]) -> Record:
        """The inverse of ``plain``."""
        sample = dict(plain["sample"])
        sample["tokens"] = tuple(sample["tokens"])
        sample["logprobs"] = tuple(sample["logprobs"])
        sample["regions"] = tuple(sample.get("regions", ()))
        sample["leading"] = tuple(sample.get("leading", ()))
        steps = (Step(**{**step, **{k: tuple(step.get(k, ())) for k in LISTS}}) for step in plain["steps"])
        return Record(Sample(**sample), tuple(steps))


def check(steps: Sequence[Step], output: int) -> None:
    """Assert the identities that every record obeys.

    Raises:
        ContractError: sum(emitted) - overshoot differs from the output's length, or a step accepted more than it
            drafted or did not emit accepted + 1. A step whose last accepted draft was computed by no pass may emit as
            many as it accepted, and a step that drafts nothing may fill any number of positions.
    """
    emitted = sum(step.emitted for step in steps)
    overshoot = sum(step.overshoot for step in steps)
    if emitted - overshoot != output:
        raise ContractError(f"emitted {emitted} - overshoot {overshoot} is not the output's {output} tokens")
    for index, step in enumerate(steps):
        whole = step.emitted == step.accepted == step.tested > 0
        emits = step.emitted == step.accepted + 1 or whole or (step.emitted > 1 and not step.drafted)
        if not 0 <= step.accepted <= step.tested <= step.drafted or not emits:
            raise ContractError(
                f"step {index}: accepted {step.accepted}, tested {step.tested}, drafted {step.drafted}, "
                f"emitted {step.emitted}: expected accepted <= tested <= drafted and emitted = accepted + 1"
            )


STEP_FIELDS = tuple(f.name for f in fields(Step))
LISTS = ("ranks", "energies")
"""Fields that hold several numbers a step."""
FORCED = ("forced_drafted", "forced_tested", "forced_accepted")
LATER = (*FORCED, "resampled", "levels")
"""Columns of steps that older runs lack."""


@dataclass(frozen=True)
class Metric:
    """A ratio of two totals.

    Args:
        name: as in tables. formula: as printed. numerator, denominator: columns of ``totals``.
        unit: of the ratio. minus: subtracted from the ratio (1 for tau - 1).
    """

    name: str
    formula: str
    numerator: str
    denominator: str
    unit: str = ""
    minus: float = 0.0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("scr", "output tokens / NFE", "output", "nfe", "tokens/pass"),
        Metric("tau", "output tokens / steps", "output", "steps", "tokens/step"),
        Metric("tau_minus_1", "output tokens / steps - 1", "output", "steps", "tokens/step", minus=1.0),
        Metric("acceptance", "accepted / tested (along the tested path)", "free_accepted", "free_tested"),
        Metric("acceptance_per_node", "accepted / drafted", "free_accepted", "free_drafted"),
        Metric("expected_per_node", "expected accepted / drafted", "free_expected", "free_drafted"),
        Metric("nfe_per_output", "NFE / output tokens", "nfe", "output", "passes/token"),
        Metric("reused", "reused drafts / steps", "reused", "steps"),
        Metric("unique_drafted", "(drafted - reused) / steps", "unique_drafted", "steps", "nodes/step"),
        Metric("mean_tree_depth", "levels of drafts / steps", "levels", "steps", "levels/step"),
        Metric("draft_nfe", "drafter passes / steps", "draft_nfe", "steps"),
        Metric("logprob", "mean log p(token), target at T = 1", "logprob", "output", "nat"),
        Metric("step_ms", "step wall time / steps", "wall_ms", "steps", "ms"),
        Metric("ms_per_token", "step wall time / output tokens", "wall_ms", "output", "ms"),
        Metric("tokens_per_second", "output tokens / step wall time", "output", "wall_s", "1/s"),
        Metric("throughput", "output tokens / Σ(step wall time / rows that shared it)", "output", "share_s", "1/s"),
    )
}


def totals(samples: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """One row a counted sample (status ok, not warm-up), indexed by (prompt, repetition).

    Args:
        samples: rows of samples.parquet. steps: rows of steps.parquet.

    Returns:
        Columns output, steps, nfe, draft_nfe, drafted, tested, accepted, expected, emitted, forced, overshoot,
        reused, resampled, levels, unique_drafted (drafted and not reused), wall_ms, wall_s,
        share_s (the output's share of its batch's time), logprob, agreement,
        prefill_ms; and drafted, tested, accepted and expected
        without the forced ones as free_drafted and so on.
    """
    steps = steps.reindex(columns=[*steps.columns, *(name for name in LATER if name not in steps)], fill_value=0)
    steps = steps.assign(share_ns=steps["wall_ns"] / steps.get("served", 1))
    good = samples[(samples["status"] == "ok") & ~samples["warmup"]].set_index(["prompt", "repetition"])
    kept = steps[~steps["warmup"]].groupby(["prompt", "repetition"], sort=False)
    columns = [
        "nfe",
        "draft_nfe",
        "drafted",
        "tested",
        "accepted",
        "expected",
        "emitted",
        "forced",
        "overshoot",
    ]
    frame = kept[[*columns, *LATER, "reused", "wall_ns", "share_ns"]].sum().reindex(good.index)
    frame["unique_drafted"] = frame["drafted"] - frame["reused"]
    for name in ("drafted", "tested", "accepted"):
        frame[f"free_{name}"] = frame[name] - frame.pop(f"forced_{name}")
    frame["free_expected"] = frame["expected"] - frame["accepted"] + frame["free_accepted"]
    frame["steps"] = kept.size().reindex(good.index)
    frame["output"] = good["tokens"].map(len)
    frame["wall_ms"] = frame.pop("wall_ns") / 1e6
    frame["wall_s"] = frame["wall_ms"] / 1e3
    frame["share_s"] = frame.pop("share_ns") / 1e9
    frame["logprob"] = good["logprobs"].map(sum)
    frame["agreement"] = good["agreement"].astype(float)
    frame["prefill_ms"] = good["prefill_ns"] / 1e6
    return frame


def value(metric: Metric, frame: pd.DataFrame) -> float | None:
    """The metric over all rows of ``totals``; None where its denominator is 0 (nothing was tested, say)."""
    below = float(frame[metric.denominator].sum())
    return float(frame[metric.numerator].sum()) / below - metric.minus if below else None


@dataclass(frozen=True)
class Depth:
    """Acceptance at one depth of a chain, from 1.

    Args:
        marginal: steps that kept a node at this depth / all steps.
        conditional: the same / steps that kept one at the depth above and drafted one here.
    """

    depth: int
    marginal: float
    conditional: float | None


def acceptance_by_depth(steps: pd.DataFrame) -> list[Depth]:
    """Marginal and conditional acceptance at each depth; 1 + the sum of marginals = emitted / steps."""
    accepted, drafted = steps["accepted"].to_numpy(), steps["drafted"].to_numpy()
    deepest = int(accepted.max()) if len(accepted) else 0
    rows = []
    for depth in range(1, deepest + 1):
        kept = int((accepted >= depth).sum())
        reached = int(((accepted >= depth - 1) & (drafted >= depth)).sum())
        rows.append(Depth(depth, kept / len(steps), kept / reached if reached else None))
    return rows
