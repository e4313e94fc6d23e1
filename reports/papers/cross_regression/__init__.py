"""Tables and figures of papers/cross_regression."""

from stridebench.reports.papers.cross_regression import facts, figures

__all__ = ["facts", "figures"]
