"""`stride baseline`: the counts that a gate compares with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.paths import LocalPath
from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports.gate.baseline import failed_samples, make_baseline, with_replay


@click.group(name="baseline")
def command() -> None:
    """Store a run's counts in a file, for `stride gate`.

    \b
    stride baseline make runs/nightly --out baseline.json
    stride gate runs/tonight --baseline baseline.json
    """


@command.command(name="make")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=LocalPath(), default=Path("baseline.json"), show_default=True, help="File.")
@click.option(
    "--again", type=click.Path(path_type=Path), multiple=True, help="A rerun with another seed; may be repeated."
)
@click.option("--replay", "replayed", is_flag=True, help="Keep the outputs and score every drafter along them.")
@click.option("--device", default="cpu", show_default=True, help="Of the replay: a torch device, such as cuda.")
@click.option("--offline", is_flag=True, help="Never download weights for the replay.")
@click.option("--force", is_flag=True, help="Replace a baseline that is there already.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {baseline, cells}.")
def make(
    run: Path,
    out: Path,
    again: tuple[Path, ...],
    replayed: bool,
    device: str,
    offline: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the counts, scores and times of every cell but plain decoding, by prompt and seed, and all verdicts.

    The run must be finished. Reruns of the suite with other seeds (A/A reruns) show how far figures move where nothing
    changed; the gate then takes its margins from them. Two or three reruns are enough.

    With --replay the baseline also keeps the outputs of cells with a drafter or trained components, and scores their
    drafts along them. `stride gate --replay` scores the same texts again, which shows far smaller losses.

    \b
    stride baseline make runs/nightly --out baseline.json
    stride run nightly --seed 1 --out runs/again1
    stride baseline make runs/nightly --again runs/again1 --again runs/again2 --out baseline.json --force
    stride baseline make runs/nightly --replay --out baseline.json
    """
    if out.exists() and not force:
        raise UsageError(f"{out} is there already; name another file with --out, or replace it with --force")
    store = Store.open(run)
    document = make_baseline(store, [Store.open(path) for path in again])
    if replayed:
        from stridebench.harness.cli import replaying  # loads models

        document = with_replay(document, replaying.record(store, document, device, fetch=not offline))
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name in document["cells"]:
        left_out = failed_samples(store, name)
        if left_out:
            say(f"stride: warning: the baseline lacks {left_out} failed samples of {name}", err=True)
    if as_json:
        emit({"baseline": str(out), "cells": list(document["cells"])})
    else:
        say(f"wrote {out}: {len(document['cells'])} cells, {len(again)} A/A reruns")
