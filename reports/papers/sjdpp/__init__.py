"""Tables and figures of papers/sjdpp."""

from stridebench.reports.papers.sjdpp import figures, maps

__all__ = ["figures", "maps"]
