"""Tables and figures of papers/adt_tree."""

from stridebench.reports.papers.adt_tree import costs, facts, figures, laws

__all__ = ["costs", "drafters", "facts", "figures", "laws", "ranks", "regions"]
