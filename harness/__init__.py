"""The contract, the loop, the clock and the record: everything that knows no method, task or report."""

from harness import deprecated

__version__ = "0.1.0"

deprecated.install()
