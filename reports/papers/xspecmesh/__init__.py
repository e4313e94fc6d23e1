"""Tables and figures of papers/xspecmesh."""

from stridebench.reports.papers.xspecmesh import facts, figures

__all__ = ["facts", "figures"]
