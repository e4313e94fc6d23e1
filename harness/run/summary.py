"""The counts that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.store import Store
from stridebench.harness.run.attempt import NO_OUTPUT


def summary(plan: Plan, store: Store) -> Mapping[str, Any]:
    """{run, cells, done, failed, malformed, skipped}; failed and malformed count samples.

    Malformed: tokens without an output, such as a mesh cut inside a patch. Failed: every other error.
    """
    done = failed = skipped = malformed = 0
    for planned in plan.cells:
        if planned.skip:
            skipped += 1
        elif store.sealed(planned.id):
            cell = store.cell(planned.id)
            skipped += cell.meta["status"] == "skipped"
            done += cell.meta["status"] == "done"
            errors = cell.samples.loc[(cell.samples["status"] == "failed") & ~cell.samples["warmup"], "error"]
            without_output = errors.fillna("").str.startswith(NO_OUTPUT)
            malformed += int(without_output.sum())
            failed += int((~without_output).sum())
    return {
        "run": store.address,
        "cells": len(plan.cells),
        "done": done,
        "failed": failed,
        "malformed": malformed,
        "skipped": skipped,
    }
