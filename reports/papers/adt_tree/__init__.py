"""Tables and figures of papers/adt_tree."""

from stridebench.reports.papers.adt_tree import figures, laws, tables

__all__ = ["figures", "laws", "tables"]
