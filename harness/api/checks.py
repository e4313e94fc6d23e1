"""`verify` and `audit` as frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from stridebench.harness.cli.audit import facts_of
from stridebench.harness.cli.verify import QUICK, settings_of
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import contract
from stridebench.harness.proof.cases import cases_to_verify
from stridebench.harness.proof.catalogue import proof_of
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import Options
from stridebench.harness.run.stored_audit import audit_store
from stridebench.stored_run import StoredRun


def verify(*methods: str, quick: bool = False, **params: Any) -> pd.DataFrame:
    """Enumerate every outcome of a decode on small random models, as `stride verify` does.

    Args:
        methods: their names; none: all.
        quick: only the smaller models.
        params: of the one setting that is verified; none: all settings that a method names.

    Returns:
        One row a setting: ``verdict`` (exact, approximate, broken or unverified), ``total_variation``, ``claim``.

    Raises:
        UsageError: there is no such method, or it has no such parameter.
    """
    declare_all()
    if params and len(methods) != 1:
        raise UsageError(f"{', '.join(params)} are parameters of one method; name one")
    settings = {name: settings_of(name, params) for name in methods} or dict(contract.usable_methods())
    outputs = QUICK if quick else None
    rows = [
        proof_of(name, method, cases_to_verify(method, outputs))
        for name, variants in settings.items()
        for method in variants
    ]
    return pd.DataFrame(rows)


def audit(
    run: StoredRun | str | Path, dtype: str | None = None, device: str = "cpu", fetch: bool = True
) -> pd.DataFrame:
    """Bet against the sampled outputs of a run, as `stride audit RUN` does.

    Args:
        run: a run, or its folder.
        dtype: in which the distributions are computed; None: that of each cell.
        device: a torch device.
        fetch: download pinned weights that are missing.

    Returns:
        One row a cell at T > 0: ``verdict`` (refuted, not refuted, inconclusive), ``e_value``, ``tokens``,
        ``visible_tv``, and ``reason`` where a cell was not audited.

    Raises:
        UsageError: no cell draws anything. StoreError: the weights at hand did not make the outputs.
    """
    declare_all()
    path = run.path if isinstance(run, StoredRun) else Path(run)
    rows = audit_store(Store.open(path), dtype, Options(device=device, fetch=fetch))
    return pd.DataFrame([facts_of(row) for row in rows])
