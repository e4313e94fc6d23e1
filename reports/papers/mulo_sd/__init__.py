"""Tables and figures of papers/mulo_sd."""

from stridebench.reports.papers.mulo_sd import pareto, sheets, stages, text

__all__ = ["pareto", "sheets", "stages", "text"]
