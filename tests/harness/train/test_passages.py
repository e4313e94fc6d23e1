"""Passages of a teacher: cached files have the names of version 0.1."""

from __future__ import annotations

import pytest

from harness.train.backbones.jacobi_trajectories import TrajectoryPlan
from harness.train.passages import Plan, TextPlan


@pytest.mark.parametrize(
    ("plan", "digest"),
    [
        (Plan("code", train=1, development=1, rows=3, new=5), "c3e9a0c2"),
        (Plan("scenes", temperature=0.5), "54481da1"),
        (TrajectoryPlan(prompts=1, new=6, block=4), "84fc1bc7"),
    ],
)
def test_files_keep_the_names_of_0_1(plan: Plan | TrajectoryPlan, digest: str) -> None:
    assert plan.digest == digest


def test_a_text_plan_keeps_its_folder_and_the_numbers_of_batches_do_not_matter() -> None:
    plan = TextPlan(rows=4, few=2, new=10, most=40, top=5, batches=2, checks=1)
    assert plan.digest("abc") == "ef881f44a771" == TextPlan(rows=4, few=2, new=10, most=40, top=5).digest("abc")
