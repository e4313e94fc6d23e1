"""From which e-value on a sampler is refuted, in an audit, in a run and in the gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

REFUTED = 1000.0
"""An e-value from which on a single sampler is refuted: a correct one reaches it once in a thousand audits."""


def refuting(cells: int) -> float:
    """The e-value that refutes one of so many samplers that are audited together, at least one.

    By the union bound, one correct run in a thousand has a cell that is refuted, whatever its cells have in common.
    """
    return REFUTED * max(cells, 1)


def refuting_in(metas: Iterable[Mapping[str, Any]]) -> float:
    """The e-value that refutes a cell of a finished run, given the meta of each of its cells.

    It is the one that the run itself used.
    """
    audited = [meta for meta in metas if meta.get("claim") == "SAME_LAW" and meta.get("audit_log_e") is not None]
    stored = [float(meta["audit_threshold"]) for meta in audited if meta.get("audit_threshold") is not None]
    return max(stored, default=refuting(len(audited)))
