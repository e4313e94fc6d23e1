"""Tables and figures of papers/xspecmesh."""

from stridebench.reports.papers.xspecmesh import facts, figures, levels, quality, sheet

__all__ = ["facts", "figures", "levels", "quality", "sheet"]
