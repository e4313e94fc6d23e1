"""Injecting a bug into a real function while a check runs."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from harness.core.method import Mutant
from harness.errors import ContractError


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While inside, the real function runs with one line changed.

    The function's code object is swapped, so every module that imported the function sees the bug.

    Raises:
        ContractError: the text to replace is not on exactly one line of the function.
    """
    function = _find(mutant.where)
    source = textwrap.dedent(inspect.getsource(function))
    lines = [number for number, line in enumerate(source.splitlines()) if mutant.old in line]
    if len(lines) != 1:
        raise ContractError(
            f"the planted bug {mutant.why!r} looks for {mutant.old!r} on one line of {mutant.where} "
            f"and finds it on {len(lines)}; bring the Plant up to date with the function"
        )
    scope: dict[str, Any] = {}
    exec(
        compile(source.replace(mutant.old, mutant.new), f"<planted: {mutant.why}>", "exec"),
        function.__globals__,
        scope,
    )
    patched = inspect.unwrap(scope[function.__name__])
    original = function.__code__
    function.__code__ = patched.__code__
    try:
        yield
    finally:
        function.__code__ = original


def _find(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
        found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    function = inspect.unwrap(found)
    if not isinstance(function, FunctionType):
        raise ContractError(f"a planted bug names {where}, which is not a Python function")
    return function
