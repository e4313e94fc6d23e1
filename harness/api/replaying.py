"""Models along stored texts: the replays of a gate, and the settings that `stride report --what-if` weighs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console

from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.device import check_device, keep_pages
from stridebench.harness.machine.surroundings import stdout_on_stderr
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import Options
from stridebench.harness.run.progress import RunProgress
from stridebench.harness.run.replay import ForeseenSetting, Scores, Text, foresee, replay, unreplayable


def record_texts(store: Store, baseline: Mapping[str, Any], device: str, fetch: bool) -> dict[str, object]:
    """Return the part of a baseline for a replay: the suite, and texts and scores of each cell that can be replayed.

    Raises:
        UsageError: none of its cells can be replayed.
    """
    suite = store.manifest.suite.stored()
    with stdout_on_stderr():
        declare_all()
        cells = {cell.id: cell for cell in expand(resolve_again(suite)).cells}
    reasons = {name: unreplayable(cells[name].method) if name in cells else "unknown" for name in baseline["cells"]}
    texts = {
        name: [
            Text(prompt, repetition, tokens)
            for (prompt, repetition), tokens in sorted(store.outputs(name).items())
            if tokens
        ]
        for name, reason in reasons.items()
        if reason is None
    }
    scores = _replay(suite, texts, device, fetch)
    reasons |= {name: score.error for name, score in scores.items() if score.error}
    labels = {name: str(cell["label"]) for name, cell in baseline["cells"].items()}
    replayed = {
        name: {
            "label": labels[name],
            "texts": [[text.prompt, text.repetition, list(map(int, text.tokens))] for text in texts[name]],
            "scores": [list(row) for row in score.rows],
        }
        for name, score in scores.items()
        if not score.error
    }
    skipped = {labels[name]: reason for name, reason in reasons.items() if reason}
    if not replayed:
        whys = "; ".join(f"{label}: {why}" for label, why in skipped.items())
        raise UsageError(f"no cell of {store.path} can be replayed: {whys}")
    return {"suite": suite, "cells": replayed, "skipped": skipped}


def score_again(baseline: Mapping[str, Any], device: str, fetch: bool) -> dict[str, Scores]:
    """Return the scores of a baseline's texts with the code and weights of today, by cell."""
    replayed = baseline["replay"]
    texts = {
        name: [Text(prompt, repetition, tuple(tokens)) for prompt, repetition, tokens in cell["texts"]]
        for name, cell in replayed["cells"].items()
    }
    return _replay(replayed["suite"], texts, device, fetch)


def _replay(
    suite: Mapping[str, Any], texts: Mapping[str, Sequence[Text]], device: str, fetch: bool
) -> dict[str, Scores]:
    with _options(suite, device, fetch) as options:
        return replay(suite, texts, options)


def foreseen_settings(store: Store, fetch: bool = False) -> list[ForeseenSetting]:
    """Return the settings that are weighed along a run's texts, with its weights on the device that it had.

    Args:
        fetch: weights that are not there are downloaded.
    """
    cells = store.cells()
    device = store.meta(cells[0]).device if cells else ""
    with _options(store.manifest.suite.stored(), device or "cpu", fetch) as options:
        return foresee(store, options)


@contextmanager
def _options(suite: Mapping[str, Any], device: str, fetch: bool) -> Iterator[Options]:
    check_device(device)
    if suite.get("threads"):
        torch.set_num_threads(suite["threads"])
    keep_pages()
    with stdout_on_stderr(), RunProgress(Console(stderr=True), quiet=True) as progress:
        declare_all()
        yield Options(device=device, fetch=fetch, progress=progress)
