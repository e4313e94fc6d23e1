"""The contracts, the loop, the clock and the store: everything that knows no method, task or report."""

__version__ = "0.1.0"
