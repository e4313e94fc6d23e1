"""Layouts of `stride export` that hold the acceptance of a run's engines."""

from __future__ import annotations

from pathlib import Path

from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports.interchange import writers

FILES = {"aiperf": "acceptance.jsonl", "golden-al": "golden_al.yaml"}
"""Each layout and its file."""


def write(run: Path, layout: str, drafts: int | None, out: Path | None) -> Path:
    """Write the acceptance of all engines of a run; returns the file.

    Args:
        drafts: the draft length, which golden-al writes as its key.
        out: the file; None: RUN/export/ and the layout's.

    Raises:
        UsageError: the file is there, the draft length is missing, or no engine tells its acceptance.
    """
    store, path = Store.open(run), out or run / "export" / FILES[layout]
    if path.exists():
        raise UsageError(f"{path} is there already; name another file with --out")
    if layout == "golden-al" and drafts is None:
        raise UsageError("golden-al is a table by draft length, which no engine tells: add --drafts N")
    text = writers.aiperf(store) if layout == "aiperf" else writers.golden(store, drafts or 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
