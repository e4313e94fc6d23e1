"""What a command has loaded when the target makes its first pass: `python -m tests.first_pass run ARGUMENTS`.

Prints our modules, those of torch and transformers, the processor time in seconds and the memory in MB, and ends there.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from stridebench.harness.cli.main import main as stride
from stridebench.harness.plan import presets

OURS = "stridebench."


def main() -> None:
    """Run the command up to the first pass, which is made after the first backbone was loaded."""
    load = presets.load

    def loaded(*args: Any, **kwargs: Any) -> Any:
        backbone = load(*args, **kwargs)
        from stridebench.harness.core.models import MeteredCache

        MeteredCache.extend = ended  # type: ignore[method-assign, assignment]
        return backbone

    presets.load = loaded
    stride()


def ended(*_: Any) -> Any:
    """Print and end."""
    tops = [name.partition(".")[0] for name in sys.modules]
    counts = {
        "ours": sum(name.startswith(OURS) for name in sys.modules),
        **{top: tops.count(top) for top in ("torch", "transformers")},
    }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**counts, "cpu_s": round(time.process_time(), 2), "memory_mb": memory}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
