"""Two workers of a pool against one: what is compared."""

from __future__ import annotations

import os
from collections import Counter
from types import SimpleNamespace

import pytest

from stridebench.harness.bench import scale
from stridebench.harness.bench.paired import Settings
from stridebench.harness.errors import UsageError
from stridebench.harness.run.pools import ray


def test_blocks_hold_equal_work_and_share_no_cell() -> None:
    plan = scale.pooled_plan(3)
    blocks = scale.blocks(plan)
    assert [len(block) for block in blocks] == [16, 16, 16]
    assert len({cell.id for block in blocks for cell in block}) == len(plan.runnable) == 48
    assert len({tuple(sorted(Counter(cell.label for cell in block).items())) for block in blocks}) == 1


@pytest.mark.parametrize(("two", "verdict"), [(1.9, "pass"), (1.5, "fail")])
def test_the_verdict_is_that_of_the_interval(two: float, verdict: str) -> None:
    plan = scale.pooled_plan(1)
    rounds = [[100 * two + pair % 3, 100.0] for pair in range(24)]
    result = scale.speedup("executors ray", plan, rounds, Settings().pairs)
    assert (result.verdict, result.pairs) == (verdict, 24) and abs(result.ratio - two) < 0.02


def test_a_cluster_that_does_not_start_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen.")  # as Ray does

    monkeypatch.setattr(ray, "engine", lambda: SimpleNamespace(init=refuse))
    with pytest.raises(
        UsageError, match=r"no Ray cluster could be started here: Exception: The current node timed out"
    ):
        ray.connect(None)
    with pytest.raises(UsageError, match=r"the Ray cluster at 10\.0\.0\.1:6379 cannot be reached"):
        ray.connect("10.0.0.1:6379")


def test_workers_of_a_cluster_that_a_benchmark_starts_have_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads the environment when its processes start; its own default is the niceness 15."""
    seen: list[str | None] = []
    name = "RAY_worker_niceness"
    monkeypatch.setenv(name, "15")
    monkeypatch.delenv(name)
    started = SimpleNamespace(init=lambda **_: seen.append(os.environ.get(name)))
    monkeypatch.setattr(ray, "engine", lambda: started)
    ray.connect(None, cpus=3)
    assert seen == ["0"]


def test_a_stretch_of_seals_has_its_own_rate() -> None:
    """A seal a second for eight seconds, then two a second: the start of the workers is no part of either."""
    seals = [100.0 + second for second in range(9)] + [108.5 + half / 2 for half in range(8)]
    assert scale.stretches(seals, 2) == pytest.approx([60.0, 120.0])
    assert scale.stretches(seals, 1) == pytest.approx([80.0])
