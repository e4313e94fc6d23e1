"""Tables and figures of papers/cross_regression."""
