"""Tables and figures of papers/adt_tree."""

from stridebench.reports.papers.adt_tree import costs, drafters, facts, figures, laws, ranks, regions

__all__ = ["costs", "drafters", "facts", "figures", "laws", "ranks", "regions"]
