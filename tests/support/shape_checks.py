"""Shape checks that cost little: of a function, three calls a test for each combination of shapes that it is given."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jaxtyping
from torch import Tensor

CHECKED = 3
"""Calls that are checked; one more with the same shapes could only differ in its values."""
CALLS: Counter[tuple[Any, ...]] = Counter()
"""Calls of this test, by function and shapes."""
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """Decorate as jaxtyping does, which checks every call and takes two thirds of the time of most tests."""

    def decorate(item: Any) -> Any:
        if not inspect.isclass(item):
            return _sparing(item, _jaxtyped(item, typechecker=typechecker))
        plain = item.__init__
        _jaxtyped(item, typechecker=typechecker)
        if item.__init__ is not plain:
            item.__init__ = _sparing(plain, item.__init__)
        return item

    return decorate


def _sparing(plain: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return plain(*args, **kwargs)
        key = (plain, *[value.shape if isinstance(value, Tensor) else None for value in (*args, *kwargs.values())])
        if CALLS[key] >= CHECKED:
            return plain(*args, **kwargs)
        CALLS[key] += 1
        return checked(*args, **kwargs)

    return call


@contextmanager
def without_shape_checks() -> Iterator[None]:
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
