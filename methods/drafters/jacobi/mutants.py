"""Bugs to inject into the refinement and the reuse of drafts."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

REUSE = "stridebench.methods.drafters.jacobi.reuse"

NEIGHBOUR_PROBS_RECORDED = Mutant(
    "stridebench.methods.drafters.jacobi.window:JacobiWindow.advance",
    "refine(tokens, q, p[begin:], len(run.target) + begin)",
    "refine(tokens, q, p[begin:], len(run.target) + begin)._replace(probs=p[begin - 1:-1])",
    "the recorded distribution is the left neighbour's",
)
C_RECORDS_NEW_PROBS = Mutant(
    f"{REUSE}:reuse_by_threshold",
    "q.where(keep_set, 0.0) + (1 - mass) * p",
    "p.clone()",
    "mode C records p, as the paper does",
)
B2_RECORDS_OLD_PROBS = Mutant(
    f"{REUSE}:reuse_by_threshold",
    "q.where(keep_set, 0.0) / mass",
    "q",
    "mode B2 records the old q",
)
M_ALWAYS_KEEPS = Mutant(
    f"{REUSE}:_refine",
    "draws.couple(x, q, p[:-1])",
    "draws.couple(x, p[:-1], p[:-1].clone())",
    "M always keeps",
)
G_DRAWS_FROM_SHIFTED_PROBS = Mutant(
    f"{REUSE}:_refine",
    "draws.race(p, range(first",
    "draws.race(p.roll(1, 1), range(first",
    "G draws from a shifted distribution",
)
G_KEYS_IGNORE_POSITIONS = Mutant(
    f"{REUSE}:_refine",
    "range(first, first + len(p))",
    "range(len(p))",
    "G uses the noise of emitted positions again",
)
REUSE_MODES = (
    C_RECORDS_NEW_PROBS,
    B2_RECORDS_OLD_PROBS,
    M_ALWAYS_KEEPS,
    G_DRAWS_FROM_SHIFTED_PROBS,
    G_KEYS_IGNORE_POSITIONS,
)
