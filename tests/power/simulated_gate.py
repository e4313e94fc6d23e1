"""How often the gate fails and passes, by simulation: free-running and along stored texts.

``python -m tests.power.simulated_gate [RUNS]`` prints the rows of ``reports/data/results/gate.yaml``, and
``python -m tests.power.simulated_gate nightly [RUNS]`` those of its table of the suite `nightly`.

A position has a target distribution p over 32 tokens and a drafter's q: logits of p plus noise, whose size differs
from prompt to prompt. A draft is accepted with probability sum(min(p, q)). A damaged drafter has more noise on its
logits, so much that its acceptance falls by the stated share on average; it gets better at some positions. A decode of
48 tokens drafts 4 tokens a step. A replay reads the acceptance probabilities of 48 fixed positions a prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from stridebench.harness.record.stats import FloatArray
from stridebench.reports.gate.baseline import TESTED, tested
from stridebench.reports.gate.decision import GateRow, compare_figure, decide, worst
from stridebench.reports.gate.replay import replay_gate

PROMPTS, LENGTH, DRAFTS, VOCABULARY, POOL = 24, 48, 4, 32, 100
GATES = (24, 800)
"""Prompts of the free-running gates: those of the suite `nightly`, and those in which a loss of 5 % would be seen."""
REPLAYS = 10
"""Replays a run of the simulation, which are a tenth of the work: a false alarm in 200 needs a thousand to show."""
FIGURES = ("tau_minus_1", "acceptance", "expected")
NIGHTLY = {"text, programs": (24, 48), "speech": (12, 64), "pictures": (8, 272), "meshes": (6, 600)}
"""Prompts and tokens of the cells of the suite `nightly` by modality."""


@dataclass(frozen=True)
class Drafters:
    """Acceptance probabilities of a sound and a changed drafter at the same positions, [prompts, positions]."""

    sound: FloatArray
    changed: FloatArray


def drafters(
    rng: np.random.Generator, positions: int, size: float, again: bool = False, prompts: int = PROMPTS
) -> Drafters:
    """Positions of each prompt.

    Args:
        size: of the noise that the change adds to the drafter's logits.
        again: the changed drafter has other noise than the sound one: another drafter, equally good.
    """
    shape = (prompts, positions, VOCABULARY)
    spread = rng.lognormal(0.0, 0.3, size=(prompts, 1, 1))
    target = rng.normal(0.0, 2.0, size=shape)
    sound = target + spread * rng.normal(size=shape)
    changed = target + spread * rng.normal(size=shape) if again else sound + size * spread * rng.normal(size=shape)
    p = _softmax(target)
    return Drafters(*(np.minimum(p, _softmax(logits)).sum(-1) for logits in (sound, changed)))


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probs: FloatArray = weights / weights.sum(-1, keepdims=True)
    return probs


def size_of(drop: float, seed: int = 0) -> float:
    """The noise that lowers acceptance by this share on average."""
    low, high = 0.0, 3.0
    for _ in range(24):
        size = (low + high) / 2
        both = drafters(np.random.default_rng(seed), POOL, size)
        if 1 - both.changed.mean() / both.sound.mean() < drop:
            low = size
        else:
            high = size
    return (low + high) / 2


def decode(rng: np.random.Generator, acceptance: FloatArray, length: int = LENGTH) -> pd.DataFrame:
    """Counts of one decode of each prompt, whose positions are drawn from a row of ``acceptance``."""
    rows = []
    for prompt in range(len(acceptance)):
        probs = rng.choice(acceptance[prompt], size=(length, DRAFTS))
        coins = rng.random((length, DRAFTS)) < probs
        accepted = coins.cumprod(axis=1).sum(axis=1)
        steps = int(np.searchsorted(np.cumsum(accepted + 1), length)) + 1
        accepted, expected = accepted[:steps], probs[:steps].cumprod(axis=1).sum()
        tried = int(np.minimum(accepted + 1, DRAFTS).sum())
        counts = (int(accepted.sum()) + steps, steps, int(accepted.sum()), tried, steps * DRAFTS, float(expected))
        rows.append((f"p{prompt}", 0, *counts))
    columns = ["prompt", "repetition", "output", "steps", "accepted", "tested", "drafted", "expected"]
    return pd.DataFrame(rows, columns=columns).set_index(["prompt", "repetition"])


def free_running(rng: np.random.Generator, both: Drafters, length: int = LENGTH) -> str:
    """The verdict of a gate over decodes, one before and one after."""
    before = decode(rng, both.sound, length)
    after = decode(rng, both.changed, length)
    figures = {name: figure for name, figure in tested(before, after).items() if name in FIGURES}
    prompts = len(both.sound)
    row = GateRow("c", "c", "", "", "", prompts=prompts, clusters=prompts, pairs=prompts)
    rows = [
        compare_figure(replace(row, metric=name), figure, before, after, prompts) for name, figure in figures.items()
    ]
    return worst(decide(rows, None))


def replayed(both: Drafters) -> str:
    """The verdict of a gate along 48 fixed positions a prompt."""
    scores = [
        [(f"p{prompt}", 0, LENGTH, float(row[:LENGTH].sum())) for prompt, row in enumerate(side)]
        for side in (both.sound, both.changed)
    ]
    document = {"replay": {"cells": {"c": {"label": "c", "scores": scores[0]}}, "skipped": {}}}
    return replay_gate(document, {"c": scores[1]}, {}).verdict


def table(runs: int) -> Iterator[list[str]]:
    """Yield rows of: change, gate, share that fails, passes, is inconclusive."""
    for drop in (None, 0.0, 0.01, 0.03, 0.05, 0.10):
        size = 1e-5 if drop is None else size_of(drop) if drop else 0.0
        name = "none (rounding)" if drop is None else f"-{drop:.0%} acceptance" if drop else "another drafter, as good"
        gates = [*(f"free-running, {prompts} prompts" for prompts in GATES), "replay"]
        verdicts: dict[str, list[str]] = {gate: [] for gate in gates}
        for seed in range(runs):
            case = [seed, round(1000 * (drop or 0)), drop is None]
            rngs = (np.random.default_rng([*case, k]) for k in range(REPLAYS))
            verdicts["replay"] += [replayed(drafters(one, LENGTH, size, drop == 0.0)) for one in rngs]
            for prompts in GATES:
                rng = np.random.default_rng([*case, prompts])
                both = drafters(rng, POOL, size, again=drop == 0.0, prompts=prompts)
                verdicts[f"free-running, {prompts} prompts"].append(free_running(rng, both))
        for gate, words in verdicts.items():
            shares = [f"{100 * words.count(word) / len(words):.1f}" for word in ("fail", "pass", "inconclusive")]
            yield [name, gate, *shares]


def nightly(runs: int) -> Iterator[list[str]]:
    """Yield rows of: modality, prompts, tokens, and the shares that fail of no loss and of losses of 1, 3, 10 %."""
    sizes = {drop: size_of(drop) for drop in (0.01, 0.03, 0.10)}
    for name, (prompts, length) in NIGHTLY.items():
        words: dict[float, list[str]] = {}
        for drop, size in {0.0: 1e-5, **sizes}.items():
            rngs = [np.random.default_rng([seed, round(1000 * drop), prompts]) for seed in range(runs)]
            changes = (drafters(rng, POOL, size, prompts=prompts) for rng in rngs)
            both = zip(rngs, changes, strict=True)
            words[drop] = [free_running(rng, one, length) for rng, one in both]
        shares = [100 * words[drop].count("fail") / runs for drop in words]
        yield [name, str(prompts), str(length), *(f"{share:.1f}" for share in shares)]


if __name__ == "__main__":
    assert set(FIGURES) <= set(TESTED)
    of_nightly = sys.argv[1:2] == ["nightly"]
    counts = [int(word) for word in sys.argv[1 + of_nightly :]] or [200]
    for line in nightly(counts[0]) if of_nightly else table(counts[0]):
        print("      - [" + ", ".join(f'"{value}"' for value in line) + "]", flush=True)
