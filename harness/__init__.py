"""The contract, the loop, the clock and the record: everything that knows no method, task or report."""

import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

IMPORTED = time.time()
"""When this process began to read our files. What was written later is not what runs."""
__version__ = "0.1.0"


class BeforeTransformers(MetaPathFinder):
    """Prepares for an import of transformers, which imports torchvision (see `extras.prepare`), from any module."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == "transformers":
            sys.meta_path.remove(self)
            from stridebench.harness.machine import extras

            extras.prepare()
        return None


sys.meta_path.insert(0, BeforeTransformers())
