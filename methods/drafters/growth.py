"""What methods that grow a tree by the drafter's confidence have in common: bounds of their parameters, and plants."""

from __future__ import annotations

from harness.errors import UsageError
from harness.method import Plant

PLANTS = (
    Plant(
        "methods.verifiers.tree:delta_acceptance",
        "return torch.where(rest > px, px / rest, ",
        "return (len(px) * px).clamp_max(1.0) if True else (",
        "a ratio test on the k best tokens, which nobody drew",
    ),
    Plant(
        "methods.verifiers.tree:verify_delta",
        "law = row.where(refused == 0, 0.0)",
        "law = row",
        "the closing token is drawn from p again, where drafts were refused",
    ),
    Plant(
        "methods.verifiers.tree:verify_delta",
        "draws.categorical(law, ",
        "draws.categorical(law.sqrt(), ",
        "the closing token is drawn before the temperature",
    ),
)


def check_growth(name: str, depth: int, width: int, nodes: int) -> None:
    """Refuse a tree without a node.

    Raises:
        UsageError: says which parameter of the method ``name`` is too small.
    """
    if depth < 0 or width < 1 or nodes < 1:
        raise UsageError(
            f"{name}: depth is {depth}, width {width}, nodes {nodes}; give a depth from 0, a width and nodes from 1"
        )


RELAXED_PLANTS = (
    Plant(
        "methods.verifiers.relaxed:judge",
        "left = torch.where(has[:, None], rule.left(",
        "left = torch.where(has[:, None] & False, rule.left(",
        "the next child is tried against p",
    ),
    Plant(
        "methods.verifiers.tree:walk",
        "draws.categorical(law, ",
        "draws.categorical(law.sqrt(), ",
        "the closing token is drawn before the temperature",
    ),
)


def check_relaxed(name: str, k: int, bound: float) -> None:
    """Refuse what neighbours cannot lend.

    Raises:
        UsageError: says which parameter of the method ``name`` is wrong.
    """
    if k < 0 or not bound >= 0:
        raise UsageError(f"{name}: k is {k} and the bound {bound:g}; give neighbours and a mass, 0 or more")
