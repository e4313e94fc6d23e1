"""Bugs to inject into the verifiers: `stride verify METHOD` must catch those that a method lists."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

REJECTION = "stridebench.methods.verifiers.rejection"
TREE = "stridebench.methods.verifiers.tree"
K_SEQ = "stridebench.methods.verifiers.k_seq"
THRESHOLD = "stridebench.methods.verifiers.typical"

CORRECTION_FROM_TARGET = Mutant(
    f"{REJECTION}:judge",
    "residual(probs, ",
    "(lambda p, q: p)(probs, ",
    "the correction token is drawn from p",
)
DRAFT_ACCEPTED_TOO_OFTEN = Mutant(
    f"{REJECTION}:acceptance_probs",
    "(px / draft_probs(x, q).to(p.dtype))",
    "(px / draft_probs(x, q).to(p.dtype)).sqrt()",
    "drafts are accepted more often than p / q",
)
GUESS_KEPT_TOO_OFTEN = Mutant(
    f"{REJECTION}:acceptance_probs",
    "return px",
    "return px.sqrt()",
    "a guess is kept more often than a fresh draw equals it",
)
GUESS_ALWAYS_KEPT = Mutant(
    f"{REJECTION}:acceptance_probs",
    "return px",
    "return torch.ones_like(px)",
    "a block is committed before it is a fixed point",
)
GUESS_JUDGED_BY_NEXT_ROW = Mutant(
    f"{REJECTION}:acceptance_probs",
    "px = p[: len(x)]",
    "px = p[1 : 1 + len(x)]",
    "guesses are compared with the row of their neighbour",
)
BONUS_AFTER_REJECTION = Mutant(
    f"{REJECTION}:judge",
    "probs = p.index_select(0, stop.reshape(1))",
    "probs = p[-1:]",
    "the token after the path is always the bonus token",
)

EARLIER_SIBLINGS_FORGOTTEN = Mutant(
    f"{TREE}:multi_step",
    "residual(residuals, q[node].to(p.dtype))",
    "residuals",
    "the next child is tried against p",
)
UNWARPED_NEXT_TOKEN = Mutant(
    f"{TREE}:walk",
    "draws.categorical(probs, ",
    "draws.categorical(probs.sqrt(), ",
    "the bonus or correction token is drawn before the temperature",
)
RATIO_TEST_ON_CHOSEN_NODES = Mutant(
    f"{TREE}:delta_acceptance",
    "return torch.where(rest > px, px / rest, ",
    "return (len(px) * px).clamp_max(1.0) if True else (",
    "a ratio test on the k best tokens, which nobody drew",
)
POINT_MASS_SIBLINGS_FORGOTTEN = Mutant(
    f"{TREE}:delta_acceptance",
    "px / rest",
    "px",
    "rejected earlier siblings are forgotten",
)
REJECTED_TOKEN_DRAWN_AGAIN = Mutant(
    f"{TREE}:verify_delta",
    "probs = row.where(rejected == 0, 0.0)",
    "probs = row",
    "the correction token is drawn from p, rejected drafts included",
)
UNWARPED_TOKEN_AFTER_POINT_MASSES = Mutant(
    f"{TREE}:verify_delta",
    "draws.categorical(probs, ",
    "draws.categorical(probs.sqrt(), ",
    "the bonus or correction token is drawn before the temperature",
)
POINT_MASSES = (RATIO_TEST_ON_CHOSEN_NODES, REJECTED_TOKEN_DRAWN_AGAIN, UNWARPED_TOKEN_AFTER_POINT_MASSES)
"""Of `verify_delta`, on trees whose nodes a drafter's confidence chose."""
NGRAMS = (POINT_MASS_SIBLINGS_FORGOTTEN, REJECTED_TOKEN_DRAWN_AGAIN, UNWARPED_TOKEN_AFTER_POINT_MASSES)
"""Of `verify_delta`, on n-grams."""

NEIGHBOURHOOD_REJECTION_FORGOTTEN = Mutant(
    "stridebench.methods.verifiers.lantern:judge",
    "left = torch.where(exists[:, None], rule.after_rejection(",
    "left = torch.where(exists[:, None] & False, rule.after_rejection(",
    "the next child is tried against p",
)
RELAXED = (NEIGHBOURHOOD_REJECTION_FORGOTTEN, UNWARPED_NEXT_TOKEN)
"""Of `verify_relaxed`."""

K_SEQ_CORRECTION_FROM_TARGET = Mutant(
    f"{K_SEQ}:k_seq",
    "residual(rows, capped * scale)",
    "rows",
    "the correction token is drawn from p",
)
K_SEQ_RESIDUAL_OF_ONE = Mutant(
    f"{K_SEQ}:k_seq",
    "residual(rows, capped * scale)",
    "residual(rows, capped)",
    "the residual is that of one candidate",
)
K_SEQ_SIBLINGS_FORGOTTEN = Mutant(
    f"{K_SEQ}:merge",
    "(total / rest)",
    "total",
    "a node's acceptance probability ignores that its earlier siblings were rejected",
)

ONE_THRESHOLD_FOR_ALL = Mutant(
    "stridebench.methods.verifiers.energy:EnergyRule.passes",
    "return rho.clamp_max(0.0).exp()",
    "return torch.cat([0 * rho[:1], rho.cumsum(0).clamp_max(0.0).cummin(0).values]).diff().exp()",
    "one threshold is drawn for all drafts and compared with the sum of their energies, as in the proof",
)

DRAFTS_JUDGED_BY_NEIGHBOUR_ROW = Mutant(
    f"{THRESHOLD}:_target_probs",
    "p[: len(x)]",
    "p.roll(1, 0)[: len(x)]",
    "drafts are judged by the row of their neighbour",
)
NEXT_TOKEN_FROM_ROW_BEFORE = Mutant(
    f"{THRESHOLD}:keep_passing",
    "path.stop.reshape(1)",
    "(path.stop - 1).clamp_min(0).reshape(1)",
    "the bonus or correction token is drawn from the row before",
)
IMPROBABLE_DRAFTS_KEPT = Mutant(
    f"{THRESHOLD}:above",
    "_target_probs(x, p) > delta",
    "_target_probs(x, p) <= delta",
    "improbable drafts are kept",
)


# Bugs to inject into a method's own step.


UNWARPED_TOKEN = Mutant(
    "stridebench.methods.autoregressive:Autoregressive.step",
    "run.probs(run.target.forward())",
    "run.target.forward().softmax(-1)",
    "the token is drawn from the unwarped distribution",
)
PROPOSALS_JUDGED_BY_NEIGHBOUR_ROW = Mutant(
    "stridebench.methods.blockwise:Blockwise.accept_probs",
    "accept_probs = acceptance_probs(x, None, p)",
    "accept_probs = acceptance_probs(x, None, p.roll(1, 0))",
    "proposals are compared with the row of their neighbour",
)


# Bugs to inject into the drafters that belong to no family.


OTHER_PROBS_RECORDED = Mutant(
    "stridebench.methods.drafters.draft_model:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append((q + 0.1) / (q + 0.1).sum())",
    "the recorded distribution is not the one that was sampled",
)
