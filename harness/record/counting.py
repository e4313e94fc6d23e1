"""What runs of each schema version count, and whether figures of two runs may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTED = {
    1: "passes and time of the steps alone, as the sessions count them",
    2: "passes and time of the method's start and steps, as the caches count them",
}
"""By the ``schema`` of a manifest."""


def counting_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Why passes, SCR and seconds of two runs must not be compared; None: both count alike.

    A run of version 1 cannot be converted, because it did not store what its methods did in ``start``.

    Args:
        one: the manifest of a run, or anything else that holds its ``schema``.
        other: the same of the other run.
    """
    first, second = (int(manifest.get("schema", 1)) for manifest in (one, other))
    if first == second:
        return None
    return (
        f"the runs count differently: schema version {first} counts {COUNTED.get(first, 'in an unknown way')}, and "
        f"version {second} {COUNTED.get(second, 'in an unknown way')}; run the older one again"
    )
