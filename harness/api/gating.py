"""`gate` and `compare`: runs against a baseline, and against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports.gate import compare as comparing
from stridebench.reports.gate import decision, replay
from stridebench.reports.gate.baseline import check_content
from stridebench.stored_run import StoredRun

MIN_PROMPTS = 6
"""With fewer prompts a gate is inconclusive."""


def gate(
    run: StoredRun | str | Path,
    baseline: str | Path,
    *,
    margin: float | None = None,
    min_prompts: int = MIN_PROMPTS,
) -> decision.GateResult:
    """Test whether a run got worse than a baseline, as `stride gate check` does.

    Args:
        run: a run, its folder, or its URL.
        baseline: a file of `stride gate make`.
        margin: tolerated drop, and the loss that a pass rules out. Default: none and 5 %.
        min_prompts: with fewer prompts a figure is inconclusive.

    Returns:
        ``verdict`` (pass, fail, inconclusive or error), ``rows`` (one a figure of a cell), ``removed`` and ``added``
        cells, ``notes``, and the ``exit_code`` of the command.

    Raises:
        UsageError: the baseline does not exist, or it is of another suite. StoreError: the run or the baseline is
            damaged.
    """
    return decision.gate(_store(run), read_baseline(Path(baseline)), margin, min_prompts)


def compare(*runs: StoredRun | str | Path, consumption: bool = False) -> comparing.Comparison:
    """Compare runs with the first one, paired by prompt and seed, as `stride report RUN --against RUN` does.

    Args:
        runs: two or more runs, run folders or URLs; the others are compared with the first.
        consumption: compare memory and energy too, if both runs have them.

    Returns:
        ``frame`` has one row a figure of a cell: its values, their difference, an interval and a p-value. ``only_a``
        and ``only_b`` name cells without a partner and say why; ``notes`` say what could not be compared.

    Raises:
        UsageError: fewer than two runs. StoreError: a run is damaged.
    """
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs or more; name the one to compare with first")
    return comparing.compare(*map(_store, runs), consumption=consumption)


def gate_replay(
    document: Mapping[str, object], margin: float | None, min_prompts: int, device: str, fetch: bool
) -> decision.GateResult:
    """Score the drafters of today along the texts of a baseline, and test whether they got worse.

    Raises:
        StoreError: the baseline is damaged. UsageError: it holds no texts.
    """
    check_content(document)
    if not document.get("replay"):
        raise UsageError("the baseline holds no texts to replay; make it with `stride gate make RUN --replay`")
    from stridebench import replaying  # loads models

    scores = replaying.score_again(document, device, fetch)
    errors = {name: score.error for name, score in scores.items() if score.error}
    rows = {name: score.rows for name, score in scores.items()}
    return replay.replay_gate(document, rows, errors, margin, min_prompts)


def read_baseline(path: Path) -> dict[str, Any]:
    """Return the document of a baseline's file.

    Raises:
        UsageError: the file does not exist, or it does not hold a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the baseline {path}: {error}. Make one with `stride gate make`.") from error
    if not isinstance(document, dict):
        raise UsageError(
            f"{path} holds a JSON {type(document).__name__}, not a baseline; make one with `stride gate make`"
        )
    return document


def _store(run: StoredRun | str | Path) -> Store:
    return Store.open(run.address if isinstance(run, StoredRun) else run)
