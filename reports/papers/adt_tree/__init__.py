"""Tables and figures of papers/adt_tree."""
