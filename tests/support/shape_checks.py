"""Shape checks switched off, where they would cost ten times what is tested; the tests of the parts have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def without_shape_checks() -> Iterator[None]:
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
