"""Timings of draft trees: trials and measurements use different prompts."""

import math

from stridebench.harness.bench.trees import TRIALS, in_halves


def test_prompts_of_the_trials_are_not_timed_again() -> None:
    prompts = [[i] for i in range(28)]
    trials, timed = in_halves(prompts)
    assert len(trials) == TRIALS and sorted(trials + timed) == prompts
    assert math.ceil(len(timed) / 2) > 10
