"""`verify` and `audit` as frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from stridebench.harness.audit.of_file import ClaimedSource, audit_figures, audit_file
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import contract
from stridebench.harness.proof.cases import cases_to_verify
from stridebench.harness.proof.catalogue import FEW, proof_of, settings_to_verify
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS
from stridebench.harness.run.loading import Options
from stridebench.harness.run.stored_audit import AuditedCell, audit_store
from stridebench.stored_run import StoredRun


def list_methods() -> pd.DataFrame:
    """List the registered methods, as `stride list methods --json` does.

    Returns:
        One row a method: ``name``, ``claim``, ``claims``, ``exact_at``, ``needs``, ``params`` (with their defaults),
        ``source`` and ``summary``.
    """
    declare_all()
    return pd.DataFrame(contract.rows_of(METHODS)).drop(columns="kind")


def verify(*methods: str, quick: bool = False, **params: Any) -> pd.DataFrame:
    """Enumerate every outcome of a decode on small random models, as `stride verify` does.

    Args:
        methods: names of methods. Default: all.
        quick: only the smaller models.
        params: parameters of the one setting to verify. Default: all settings that a method names.

    Returns:
        One row a setting: ``verdict`` (exact, approximate, broken or unverified), ``total_variation``, ``claim``.

    Raises:
        UsageError: the method or its parameter does not exist.
    """
    declare_all()
    if params and len(methods) != 1:
        raise UsageError(f"{', '.join(params)} are parameters of one method; name one")
    settings = {name: settings_to_verify(name, params) for name in methods} or dict(contract.usable_methods())
    outputs = FEW if quick else None
    rows = [
        proof_of(name, method, cases_to_verify(method, outputs))
        for name, variants in settings.items()
        for method in variants
    ]
    return pd.DataFrame(rows)


def audit(
    run: StoredRun | str | Path | None = None,
    *,
    tokens: str | Path | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    fetch: bool = True,
    **claimed: Any,
) -> pd.DataFrame:
    """Bet against the sampled outputs of a run or of a file, as `stride audit` does.

    Args:
        run: a run, or its folder.
        tokens: instead of a run, a file of JSON lines such as {"prompt_ids": [1, 2], "output_ids": [3, 4]}.
        dtype: the distributions are computed in this type. Default: that of each cell, or of the backbone.
        device: a torch device.
        fetch: download pinned weights that are missing.
        claimed: with ``tokens``, the source that they claim: ``backbone``, ``temperature``, and if needed ``top_k``,
            ``top_p``, ``drafter`` and ``margin``.

    Returns:
        One row a cell at T > 0, or one for the file: ``verdict`` (refuted, not refuted, inconclusive), ``e_value``,
        ``tokens``, ``visible_tv``, and ``reason`` if a cell was not audited.

    Raises:
        UsageError: no cell draws anything, or an argument is missing or wrong. StoreError: the weights at hand did not
            make the outputs.
    """
    declare_all()
    if (run is None) == (tokens is None):
        raise UsageError("name a run, or a file of tokens, one of them")
    if tokens is not None:
        name, result = audit_file(Path(tokens), _source(claimed, dtype), device, fetch)
        return pd.DataFrame([{"tokens_file": str(tokens), "dtype": name} | audit_figures(result)])
    if claimed:
        raise UsageError(f"{', '.join(claimed)} go with tokens; a run says how it was sampled")
    path = run.path if isinstance(run, StoredRun) else Path(str(run))
    rows = audit_store(Store.open(path), dtype, Options(device=device, fetch=fetch))
    return pd.DataFrame([facts_of(row) for row in rows])


def _source(claimed: Mapping[str, Any], dtype: str | None) -> ClaimedSource:
    known = [field.name for field in fields(ClaimedSource)]
    if unknown := [key for key in claimed if key not in known]:
        raise UsageError(f"audit has no argument {unknown[0]!r}; with tokens it takes {', '.join(known)}")
    if missing := [key for key in ("backbone", "temperature") if key not in claimed]:
        raise UsageError(f"tokens need {' and '.join(missing)}: the source that they claim to be drawn from")
    return ClaimedSource(**claimed, dtype=dtype)


def facts_of(row: AuditedCell) -> dict[str, object]:
    """Return an audited cell as one row."""
    facts = {"cell": row.name, "label": row.label, "claim": row.claim.name, "dtype": row.dtype, "reason": row.reason}
    return facts | (audit_figures(row.audit) if row.audit is not None else {"verdict": None})
