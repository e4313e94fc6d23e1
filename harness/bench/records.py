"""Plans and records that benchmarks of the harness itself are made of; no model decodes them."""

from __future__ import annotations

import random
from typing import Any

from stridebench.harness.plan.cells import Plan, expand
from stridebench.harness.plan.suite import resolve_again
from stridebench.harness.record.columns import Record, Sample, Step


def plan_of(**data: Any) -> Plan:
    """A plan on the tabular backbone, which decodes in no time."""
    plain = {"name": "scale", "backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}]}
    return expand(resolve_again({**plain, "max_new_tokens": 4, "prove": False, "warmup": 0, **data}))


def paged_record(number: int, count: int = 100, draws: random.Random | None = None) -> Record:
    """A sample of so many steps; by its number where no generator is given."""
    draws = random.Random(number) if draws is None else draws
    steps = []
    for _ in range(count):
        accepted, wall = draws.randrange(4), draws.randrange(20_000_000, 30_000_000)
        times = (wall, wall, wall // 10, wall * 8 // 10, wall // 20, wall // 20)
        steps.append(Step(1, 3, 4, 3, min(3, accepted + 1), accepted, 1.5, accepted + 1, 0, 0, 0, *times))
    tokens = tuple(draws.randrange(50_000) for _ in range(sum(step.emitted for step in steps)))
    pieces = tuple(f" word{token}" for token in tokens)
    logprobs = tuple(-draws.random() for _ in tokens)
    sample = Sample(
        f"prompt/{number}", 0, False, "ok", tokens=tokens, text="".join(pieces), pieces=pieces, logprobs=logprobs,
        prompt_tokens=64, prompt_text="def f(x):\n    return x < 1\n" * 20, scores={"tokens": float(len(tokens))},
    )  # fmt: skip
    return Record(sample, tuple(steps))
