"""Bugs planted in the shared verifiers, each once: `stride verify` must see those that a method lists."""

from __future__ import annotations

from harness.core.method import Mutant

PLAIN_CORRECTION = Mutant(
    "methods.verifiers.rejection:judge",
    "residual(probs, ",
    "(lambda p, q: p)(probs, ",
    "the correction is drawn from p",
)
ELDERS_FORGOTTEN = Mutant(
    "methods.verifiers.tree:multi_step",
    "residual(left, q[node].to(p.dtype))",
    "left",
    "the next child is tried against p",
)
EARLY_CLOSING = Mutant(
    "methods.verifiers.tree:walk",
    "draws.categorical(probs, ",
    "draws.categorical(probs.sqrt(), ",
    "the closing token is drawn before the temperature",
)
POINT_MASSES = (
    Mutant(
        "methods.verifiers.tree:delta_acceptance",
        "return torch.where(rest > px, px / rest, ",
        "return (len(px) * px).clamp_max(1.0) if True else (",
        "a ratio test on the k best tokens, which nobody drew",
    ),
    Mutant(
        "methods.verifiers.tree:verify_delta",
        "probs = row.where(refused == 0, 0.0)",
        "probs = row",
        "the closing token is drawn from p again, where drafts were refused",
    ),
    Mutant(
        "methods.verifiers.tree:verify_delta",
        "draws.categorical(probs, ",
        "draws.categorical(probs.sqrt(), ",
        "the closing token is drawn before the temperature",
    ),
)
"""Of `verify_delta`, on trees that a drafter's confidence chose."""
RELAXED = (
    Mutant(
        "methods.verifiers.lantern:judge",
        "left = torch.where(has[:, None], rule.left(",
        "left = torch.where(has[:, None] & False, rule.left(",
        "the next child is tried against p",
    ),
    EARLY_CLOSING,
)
"""Of `verify_relaxed`."""
