"""What methods that grow a tree by the drafter's confidence have in common: bounds of their parameters."""

from __future__ import annotations

from harness.errors import UsageError


def check_growth(name: str, depth: int, width: int, nodes: int) -> None:
    """Refuse a tree without a node.

    Raises:
        UsageError: says which parameter of the method ``name`` is too small.
    """
    if depth < 0 or width < 1 or nodes < 1:
        raise UsageError(
            f"{name}: depth is {depth}, width {width}, nodes {nodes}; give a depth from 0, a width and nodes from 1"
        )


def check_relaxed(name: str, k: int, bound: float) -> None:
    """Refuse what neighbours cannot lend.

    Raises:
        UsageError: says which parameter of the method ``name`` is wrong.
    """
    if k < 0 or not bound >= 0:
        raise UsageError(f"{name}: k is {k} and the bound {bound:g}; give neighbours and a mass, 0 or more")
