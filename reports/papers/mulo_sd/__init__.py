"""Tables and figures of papers/mulo_sd."""

from stridebench.reports.papers.mulo_sd import pareto, stages

__all__ = ["pareto", "stages"]
