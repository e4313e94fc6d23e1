"""Tables and figures of papers/adt_tree."""

from reports.papers.adt_tree import costs, drafters, facts, figures, laws, ranks, regions

__all__ = ["costs", "drafters", "facts", "figures", "laws", "ranks", "regions"]
