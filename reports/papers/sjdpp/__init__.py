"""Tables and figures of papers/sjdpp."""

from stridebench.reports.papers.sjdpp import batch, diversity, exact, figures, maps

__all__ = ["batch", "diversity", "exact", "figures", "maps", "regions"]
