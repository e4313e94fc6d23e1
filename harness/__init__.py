"""The contract, the loop, the clock and the record: everything that knows no method, task or report."""

import time

IMPORTED = time.time()
"""When this process began to read our files. What was written later is not what runs."""
__version__ = "0.1.0"
