"""Tables and figures of papers/sjdpp."""

from stridebench.reports.papers.sjdpp import diversity, exact, figures, maps

__all__ = ["diversity", "exact", "figures", "maps"]
