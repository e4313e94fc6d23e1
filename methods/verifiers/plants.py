"""Bugs planted in the shared verifiers, each once: `stride verify` must see those that a method lists."""

from __future__ import annotations

from harness.method import Plant

PLAIN_CORRECTION = Plant(
    "methods.verifiers.rejection:judge",
    "residual(law, ",
    "(lambda p, q: p)(law, ",
    "the correction is drawn from p",
)
ELDERS_FORGOTTEN = Plant(
    "methods.verifiers.tree:multi_step",
    "residual(left, q[node].to(p.dtype))",
    "left",
    "the next child is tried against p",
)
EARLY_CLOSING = Plant(
    "methods.verifiers.tree:walk",
    "draws.categorical(law, ",
    "draws.categorical(law.sqrt(), ",
    "the closing token is drawn before the temperature",
)
POINT_MASSES = (
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
"""Of `verify_delta`, on trees that a drafter's confidence chose."""
RELAXED = (
    Plant(
        "methods.verifiers.relaxed:judge",
        "left = torch.where(has[:, None], rule.left(",
        "left = torch.where(has[:, None] & False, rule.left(",
        "the next child is tried against p",
    ),
    EARLY_CLOSING,
)
"""Of `verify_relaxed`."""
