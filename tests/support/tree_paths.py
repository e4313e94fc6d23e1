"""Paths of trees, by plain loops."""

from __future__ import annotations

from collections.abc import Sequence


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """The nodes from the root down to ``node``."""
    return () if node < 0 else (*path_to(parents, parents[node]), node)


def token_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens from the root down to each node."""
    return [tuple(tokens[k] for k in path_to(parents, node)) for node in range(len(tokens))]
