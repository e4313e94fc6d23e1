"""Synthetic runs for the tests of reports: records, held in memory or in a real store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stridebench.harness.record.columns import STEP_FIELDS, Record, Sample, Step
from stridebench.harness.record.entries import CellMeta, Manifest

KEY = {"suite": "toy", "seed": 0, "tasks": [{"name": "toy", "limit": 24}], "prompts": {"toy": "abc"}}
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}


@dataclass(frozen=True)
class FakeCell:
    """As ``store.SealedCell``; tests may change ``facts``, which ``meta`` is read from."""

    name: str
    facts: dict[str, Any]
    samples: pd.DataFrame
    steps: pd.DataFrame

    @property
    def meta(self) -> CellMeta:
        """Return the typed facts."""
        return CellMeta.read(self.facts)


@dataclass
class FakeStore:
    """What reports read of a store: a manifest, which is read from ``body``, and sealed cells."""

    body: dict[str, Any]
    sealed_cells: dict[str, FakeCell] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    path: Path = Path("fake-run")
    address: str = "fake-run"

    @property
    def manifest(self) -> Manifest:
        """Return the typed manifest."""
        return Manifest.read(self.body)

    def meta(self, name: str) -> CellMeta:
        """Return the facts of a sealed cell."""
        return self.sealed_cells[name].meta

    def cells(self) -> list[str]:
        """All sealed cells."""
        return list(self.sealed_cells)

    def engine_cells(self) -> list[str]:
        """No cell of an engine."""
        return []

    def cell(self, name: str) -> FakeCell:
        """One of them."""
        return self.sealed_cells[name]

    def add(self, meta: Mapping[str, Any], records: Iterable[Record]) -> FakeStore:
        """Seal a cell of these records."""
        records = list(records)
        cell = FakeCell(meta["cell"], dict(meta), samples_of(records), steps_of(records))
        self.sealed_cells[cell.name] = cell
        self.records[cell.name] = records
        self.body["cells"][cell.name] = dict(meta)
        return self

    def skip(self, meta: Mapping[str, Any], reason: str) -> FakeStore:
        """Add a cell that was skipped."""
        self.body["cells"][meta["cell"]] = {**meta, "status": "skipped", "reason": reason}
        return self


def empty(key: Mapping[str, Any] | None = None, fingerprint: str = "f00d") -> FakeStore:
    """A run without cells."""
    return FakeStore(
        {
            "schema": 2,
            "created": "2026-01-01T00:00:00Z",
            "key": dict(
                key or {"suite": "toy", "seed": 0, "tasks": [{"name": "toy", "limit": 24}], "prompts": {"toy": "abc"}}
            ),
            "cells": {},
            "suite": {"name": "toy"},
            "provenance": {"fingerprint": fingerprint, "machine": {"cpu": "a CPU", "cores": 2}},
        }
    )


def samples_of(records: Iterable[Record]) -> pd.DataFrame:
    """Rows of samples.parquet."""
    rows = []
    for record in records:
        row = dict(vars(record.sample))
        row["tokens"], row["logprobs"] = list(row["tokens"]), list(row["logprobs"])
        row["scores"], row["stages"] = json.dumps(row["scores"]), json.dumps(row["stages"])
        row["sha256"] = hashlib.sha256(",".join(map(str, row["tokens"])).encode()).hexdigest()
        rows.append(row)
    frame = pd.DataFrame(rows, columns=[*Sample.__dataclass_fields__, "sha256"])
    return frame.astype({"warmup": bool, "agreement": float, "margin": float})


def steps_of(records: Iterable[Record]) -> pd.DataFrame:
    """Rows of steps.parquet."""
    rows = [
        {
            **{k: getattr(record.sample, k) for k in ("prompt", "repetition", "warmup")},
            "step": i,
            **vars(step),
        }
        for record in records
        for i, step in enumerate(record.steps)
    ]
    columns = ["prompt", "repetition", "warmup", "step", *STEP_FIELDS]
    return pd.DataFrame(rows, columns=columns).astype({"warmup": bool})


def meta(cell: str, **changes: Any) -> dict[str, Any]:
    """A cell's meta: a greedy autoregressive baseline unless changed."""
    return {
        "cell": cell,
        "status": "done",
        "reason": None,
        "method": "autoregressive",
        "params": {},
        "label": cell,
        "claim": "SAME_LAW",
        "source": "folklore",
        "backbone": "toy-135m",
        "dtype": "bf16",
        "fingerprint": "00",
        "task": "toy",
        "sampling": GREEDY,
        "max_new_tokens": 64,
        "batch": 1,
        "baseline": "ar",
        "floor": None,
        "role": "method",
        "expected": 0,
        "verdict": {"word": "exact", "total_variation": 0.0, "greedy": None, "note": ""},
        **changes,
    }


def step(accepted: int = 0, drafted: int = 0, tested: int | None = None, ms: float = 10.0, **changes: Any) -> Step:
    """A step of one target pass; a tenth of its time each in draft and verify, a twentieth in the host."""
    ns = round(ms * 1e6)
    plain = Step(
        nfe=1,
        draft_nfe=drafted,
        rows=drafted + 1,
        drafted=drafted,
        tested=min(accepted + 1, drafted) if tested is None else tested,
        accepted=accepted,
        expected=float(accepted),
        emitted=accepted + 1,
        forced=0,
        overshoot=0,
        reused=0,
        wall_ns=ns,
        device_ns=ns,
        draft_ns=ns // 10,
        target_ns=ns * 3 // 4,
        verify_ns=ns // 10,
        host_ns=ns // 20,
    )
    return replace(plain, **changes)


def record(prompt: str, steps: Iterable[Step], repetition: int = 0, **changes: Any) -> Record:
    """A record whose output is as long as its steps say."""
    steps = tuple(steps)
    output = sum(one.emitted - one.overshoot for one in steps)
    plain = {
        "tokens": tuple(range(output)),
        "logprobs": (-1.0,) * output,
        "agreement": 1.0,
        "prefill_ns": 5_000_000,
    }
    fields = {"warmup": False, "status": "ok", "prompt_tokens": 7, **plain, **changes}
    return Record(Sample(prompt=prompt, repetition=repetition, **fields), steps)


@dataclass(frozen=True)
class Sim:
    """A simulated cell: each of ``gamma`` drafted tokens is accepted with a chance of its prompt's.

    Args:
        acceptance: mean over prompts. step_ms: of a step. agreement, logprob: means. seed: of the decode.
        prompts_seed: of the prompts' difficulty, shared by cells that are to be paired.
    """

    acceptance: float = 0.6
    gamma: int = 5
    step_ms: float = 27.0
    agreement: float | None = 1.0
    logprob: float = -0.8
    spread: float = 0.7
    seed: int = 0
    prompts_seed: int = 0
    vocabulary: int = 60


def simulate(sim: Sim, prompts: int = 12, repetitions: int = 1, budget: int = 64) -> list[Record]:
    """Records of one cell."""
    return list(_simulated(sim, prompts, repetitions, budget))


@cache
def _simulated(sim: Sim, prompts: int, repetitions: int, budget: int) -> tuple[Record, ...]:
    """Records are frozen, so that tests can share them."""
    hard = np.random.default_rng(sim.prompts_seed).normal(size=prompts)
    records = []
    for p in range(prompts):
        chance = 1 / (1 + np.exp(-(np.log(sim.acceptance / (1 - sim.acceptance)) + sim.spread * hard[p])))
        for r in range(repetitions):
            rng = np.random.default_rng([sim.seed, p, r])
            records.append(_decode(sim, rng, f"p{p:03d}", r, chance, budget, float(hard[p])))
    return tuple(records)


def _decode(sim: Sim, rng: np.random.Generator, prompt: str, r: int, chance: float, budget: int, hard: float) -> Record:
    steps: list[Step] = []
    room = budget
    while room > 0:
        drafted = min(sim.gamma, room - 1)
        accepted = int(np.cumprod(rng.random(drafted) < chance).sum())
        steps.append(step(accepted, drafted, ms=sim.step_ms * float(rng.lognormal(0, 0.08))))
        room -= accepted + 1
    tokens = tuple(int(one) for one in rng.integers(0, sim.vocabulary, size=budget))
    logprobs = tuple(float(one) for one in rng.normal(sim.logprob + 0.1 * hard, 0.3, size=budget))
    agreement = (
        None if sim.agreement is None else min(1.0, sim.agreement + float(rng.normal(0, 0.02)) * (sim.agreement < 1))
    )
    category = "code" if int(prompt[1:]) % 2 else "prose"
    return record(
        prompt,
        steps,
        r,
        tokens=tokens,
        logprobs=logprobs,
        agreement=agreement,
        category=category,
        scores={"pass@1": float(rng.random() < 0.3)},
    )


def suite(prompts: int = 12, seed: int = 0, noise: float = 0.0, **run: Any) -> FakeStore:
    """Two groups (T = 0, 1) of a baseline, exact and approximate methods, a broken and a skipped one.

    Args:
        noise: relative loss of acceptance of the speculative cells, as of a drafter that got worse.
    """
    store = empty(**run)
    for t in (0.0, 1.0):
        _group(store, t, prompts, seed, noise)
    return store


def _group(store: FakeStore, t: float, prompts: int, seed: int, noise: float) -> None:
    base = f"t{t:g}-ar"
    same = {
        "sampling": {**GREEDY, "temperature": t},
        "baseline": base,
        "floor": f"{base}-floor" if t else None,
        "expected": prompts,
        "max_new_tokens": 64,
    }

    def add(cell: str, label: str, method: str, sim: Sim, **changes: Any) -> None:
        agreement = None if t else sim.agreement
        records = simulate(replace(sim, agreement=agreement, seed=seed + 10 * len(store.sealed_cells)), prompts)
        store.add(meta(f"t{t:g}-{cell}", **{**same, "label": label, "method": method, **changes}), records)

    add("ar", "autoregressive", "autoregressive", Sim(gamma=0, step_ms=24), role="baseline")
    if t:
        add(
            "ar-floor",
            "autoregressive (other seeds)",
            "autoregressive",
            Sim(gamma=0, step_ms=24),
            role="floor",
        )
    worse = Sim(0.6 * (1 - noise), step_ms=33)
    add("spec", "speculative gamma=5", "speculative", worse, params={"gamma": 5})
    add("pld", "prompt_lookup", "prompt_lookup", Sim(0.35, step_ms=25))
    add("jacobi", "jacobi window=8", "jacobi", Sim(0.12, step_ms=28), params={"window": 8})
    add("sjd", "sjd init=random", "sjd", Sim(0.3, step_ms=28), params={"init": "random"})
    for tau, rate in ((0.25, 0.55), (0.5, 0.5), (0.75, 0.42), (1.0, 0.35)):
        lossy = Sim(rate, step_ms=28, agreement=0.6 + 0.35 * tau, logprob=-1.1 + 0.3 * tau)
        word = {"word": "approximate", "total_variation": 0.05 * (1.1 - tau), "greedy": None, "note": ""}
        params = {"reuse": "paper", "tau": tau}
        add(
            f"sjdpp-{tau}",
            f"sjdpp reuse=paper tau={tau:g}",
            "sjdpp",
            lossy,
            params=params,
            verdict=word,
            claim="APPROXIMATE",
        )
    wrong = {
        "word": "broken",
        "total_variation": 0.18,
        "greedy": "1/6 equal (fp32)",
        "note": "claims SAME_LAW",
    }
    add("bad", "third_party", "third_party", Sim(0.5, step_ms=26, agreement=0.3, logprob=-1.6), verdict=wrong)
    store.skip(
        meta(f"t{t:g}-tree", **{**same, "label": "specinfer", "method": "specinfer"}),
        "needs TREE_MASK, which toy-135m does not offer",
    )


def tiny(**changes: object) -> FakeStore:
    """Four prompts: AR takes 10 steps of 10 ms; the method 5 steps of 12 ms, accepting 1 of 2 drafted."""
    store = empty()
    names = [f"p{i}" for i in range(4)]
    store.add(meta("ar", role="baseline", expected=4), [record(p, [step(ms=10.0)] * 10) for p in names])
    warm = record("p0", [step(2, 2, ms=900.0)], warmup=True)
    steps = [step(1, 2, ms=12.0)] * 5
    store.add(meta("m", expected=5, **changes), [warm, *(record(p, steps) for p in names)])
    return store
