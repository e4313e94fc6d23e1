"""Speculative sampling with an independent draft model.

Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1. Verifiers: `block` of Sun et al. 2025, arXiv:2403.10444,
Algorithm 2; `match`, and `coupled` of Daliri et al. 2024, arXiv:2408.07978. Lossy acceptance: see `LossyRule`; drafters
of another vocabulary: `TranslatedBackbone`; drafters that fill masks: PARD, An et al. 2025, arXiv:2504.18583.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, gamma draft length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, DeclaredRows, Draft, ExpectedSteps
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import (
    DROPPED_FOR_ANOTHER,
    DROPPED_FOR_ITS_DOUBT,
    DROPPED_FOR_ITS_PROBABILITY,
    HEAD_FILES,
    MOST_PROBABLE_DRAFTS,
    NOT_NORMALISED,
    OTHER_PROBS_RECORDED,
    AcceptanceHead,
    DraftLength,
    ModelDrafter,
)
from stridebench.methods.drafters.known_text import KnownText
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE, STOP_WITH_TOKEN_RESIDUAL
from stridebench.methods.verifiers.rejection import (
    COMPARED_WITH_NEIGHBOUR,
    CORRECTION_FROM_TARGET,
    DRAFT_ACCEPTED_TOO_OFTEN,
    MIN_P_SKIPPED,
    verify_chain,
    verify_match,
)
from stridebench.methods.verifiers.typical import DECLARED, SURE_TARGET_OVERRULED, LossyRule, unsure_of, verify_fly

VERIFIERS = (*CHAIN_VERIFIERS, "match", "coupled")
FORESEEN = 8
"""The longest draft that `stride report --what-if` weighs, or gamma if that is longer."""
FORESEEN_POLICIES = (
    *("conf:0.2", "conf:0.4", "conf:0.6", "conf:0.8", "keep:0.2", "keep:0.4", "keep:0.6"),
    *("p_min:0.4", "p_min:0.75", "entropy:0.2", "entropy:0.4", "ema:0.2"),
)
"""Policies that it weighs."""


@METHODS.register("speculative")
@dataclass(frozen=True)
class Speculative(Method[ModelDrafter]):
    """Draft gamma tokens with a small model; keep the prefix the target accepts.

    Args:
        drafter: a backbone of the same vocabulary. ``self`` is the target itself (a check, never a gain);
            ``self:layers=N`` is the target with N of its layers. ``NAME:vocab=tli`` has another vocabulary and drafts
            with the tokens of both; ``NAME:vocab=slem`` drafts the target's tokens of a text that it writes greedily.
        gamma: drafts a step, or the most if a policy ends them before.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more. ``match`` keeps the drafts that a sample of the target repeats. ``coupled`` does so too, and the
            drafter draws by the same random numbers.
        policy: where a draft ends. ``conf:t`` ends it before a position whose most probable token has less than t.
            ``keep:t`` ends it behind a token of less than t. ``p_min:t`` is ``conf`` with the most probable tokens as
            drafts. ``entropy`` ends it before a position of high entropy. ``ema`` drafts one more than was accepted
            lately. ``table:1=8,4=3`` is for batches: 8 tokens for one decode, 3 from four on. ``head:t`` ends it
            behind a token if one of those before is rejected with a probability above t, as ``head`` predicts; gamma
            is 20 in the paper. ``budget:B`` keeps the B drafts of a batch that most likely survive, by the products of
            the drafter's highest probabilities.
        acceptance: ``exact``, or a rule that changes the output: ``mixture:0.9``, ``cascade:0.5``,
            ``cascade_token:0.25``, ``typical:0.09,0.3``, ``relaxed:3,0.2``, ``thresholds:0.5,1``, ``fly:6,0.3`` (see
            `LossyRule`). The window of ``fly`` is never longer than gamma - 1.
        mask: an id that the drafter was tuned to fill: one pass over gamma - 1 copies behind the text proposes all
            drafts, each independent of the others. ``pard`` is the ``pard_token`` of the drafter's config.json, as
            PARD's drafters have it. Without a mask, a pass proposes one draft.
        head: the folder of the acceptance head of policy ``head``, as SpecDec++ saves it, for the last hidden rows of
            this drafter. No recipe trains one.
    """

    drafter: str = "self"
    gamma: int = 5
    verifier: str = "token"
    policy: str = ""
    acceptance: str = "exact"
    mask: int | Literal["pard"] | None = None
    head: str = ""

    source = "arXiv:2211.17192, Algorithm 1"
    exact_at = "acceptance = exact, mixture:1, thresholds:1,1, or fly above ln 3 nats"
    requirements = frozenset({Requirement.DRAFTER})
    mutants = (
        CORRECTION_FROM_TARGET,
        DRAFT_ACCEPTED_TOO_OFTEN,
        OTHER_PROBS_RECORDED,
        MOST_PROBABLE_DRAFTS,
        DROPPED_FOR_ITS_PROBABILITY,
        DROPPED_FOR_ITS_DOUBT,
        DROPPED_FOR_ANOTHER,
        RATIO_CAPPED_ONCE,
        STOP_WITH_TOKEN_RESIDUAL,
        COMPARED_WITH_NEIGHBOUR,
        SURE_TARGET_OVERRULED,
        NOT_NORMALISED,
        MIN_P_SKIPPED,
    )

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise UsageError(f"speculative: gamma is {self.gamma}; draft at least one token")
        if self.verifier not in VERIFIERS:
            raise UsageError(f"speculative: verifier is {self.verifier!r}; known: {', '.join(VERIFIERS)}")
        if self._length().name == "p_min" and self.verifier == "coupled":
            raise UsageError(
                "speculative: policy p_min drafts the most probable tokens, and a coupled drafter draws its own; "
                "take conf, or verifier match"
            )
        if self.mask is not None and (":vocab=" in self.drafter or (self.mask != "pard" and self.mask < 0)):
            raise UsageError(
                f"speculative: mask is {self.mask} and drafter {self.drafter}; give an id of a drafter that has the "
                f"target's vocabulary"
            )
        if (self._length().name == "head") != bool(self.head) or (self.head and self.mask is not None):
            raise UsageError(
                f"speculative: policy is {self.policy!r}, head {self.head!r} and mask {self.mask}; give policy "
                f"head:0.3 and head=FOLDER together, without a mask, and {HEAD_FILES}"
            )
        if self.acceptance != "exact":
            name = LossyRule.of("speculative", self.acceptance).name
            if self.verifier != "token":
                raise UsageError(f"speculative: acceptance {name} and verifier {self.verifier}; take verifier token")
            if name == "fly" and self.gamma == 1:
                raise UsageError(
                    "speculative: acceptance fly looks at the drafts behind one, and gamma is 1; take 2 or more"
                )

    @property
    def claim(self) -> Claim:
        if self.acceptance == "exact" or (rule := LossyRule.of("speculative", self.acceptance)).exact:
            return Claim.SAME_LAW
        return Claim.DECLARED if rule.declares else Claim.APPROXIMATE

    def _length(self) -> DraftLength:
        return DraftLength.of("speculative", self.policy, self.gamma, of_model=True)

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return [("acceptance head", self.head)] if self.head else []

    def start(self, run: Run) -> ModelDrafter:
        session = run.open(self.drafter, taps=(-1,) if self.head else ())
        mask = session.capabilities.pard if self.mask == "pard" else self.mask
        if self.mask == "pard" and mask is None:
            raise UsageError(
                f"speculative: mask is pard, and the drafter {self.drafter} has no pard_token in its config.json; take "
                f"one that was tuned for PARD, or leave mask out"
            )
        if mask is not None and not 0 <= mask < session.capabilities.vocabulary:
            raise UsageError(
                f"speculative: mask is {mask}, and the drafter {self.drafter} has the ids below "
                f"{session.capabilities.vocabulary}; give the pard_token of its config.json"
            )
        if self.head:
            AcceptanceHead.open(run, self.head, session)  # so that a wrong one is an error before the first step
        return ModelDrafter(session, self.gamma, self._length(), self.verifier == "coupled", mask, self.head)

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        draft = state.propose(run)  # x ~ q, gamma times
        logits = run.target.forward(draft)  # of gamma + 1 distributions in one pass
        acceptance = self._verified(run, draft, logits, state.coupled)
        state.length.follow(len(draft), acceptance)
        return acceptance

    def _verified(self, run: Run, draft: Draft, logits: Float[Tensor, "R V"], coupled: bool) -> Acceptance:
        p = run.probs(logits)
        if self.verifier not in CHAIN_VERIFIERS:
            q = draft.probs if coupled else None
            return verify_match(draft.tokens, q, p, run.draws, first=len(run.target))
        if self.acceptance == "exact":
            return CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)
        rule = LossyRule.of("speculative", self.acceptance)
        if rule.name == "fly" and len(draft):
            weighed = p if run.sampling.temperature > 0 else logits.softmax(1)  # greedy rows have no entropy
            unsure = unsure_of(draft.tokens, weighed, rule.values[1])
            return verify_fly(draft, p, run.draws, unsure, min(int(rule.values[0]), self.gamma - 1))
        if not rule.declares and len(draft):
            return rule.verify(draft.tokens, p, run.draws)
        pi = rule.declared(draft.q(p.shape[1], p), p) if rule.declares else p
        acceptance = verify_chain(draft.tokens, draft.probs, pi, run.draws)
        acceptance.declared = DeclaredRows(pi, p) if rule.declares else None
        return acceptance

    def foresee(self, run: Run, text: Sequence[int], p: Float[Tensor, "N V"]) -> Mapping[Speculative, ExpectedSteps]:
        """Return the steps by each verifier, length and policy; by none if a rule is lossy or a mask is set."""
        if self.acceptance != "exact" or self.mask is not None:
            return {}
        settings = self._settings(drawn=run.sampling.temperature > 0)
        known = KnownText.read(run, run.open(self.drafter), text, p, max(one.gamma for one in settings))
        return {one: known.expected_steps(run, one.verifier, one.gamma, one._length()) for one in settings}

    def _settings(self, drawn: bool) -> Sequence[Speculative]:
        """Return every length, and policies up to the longest; at T = 0 all verifiers keep the same drafts."""
        longest = max(self.gamma, FORESEEN)
        fixed = [replace(self, gamma=gamma, policy="", head="", verifier="token") for gamma in range(1, longest + 1)]
        ruled = [replace(fixed[-1], policy=policy) for policy in FORESEEN_POLICIES]
        if not drawn:
            return (*fixed, *ruled)
        blocks = [replace(one, verifier="block") for one in (*fixed[1:], *ruled) if one._length().name != "p_min"]
        return (
            *fixed,
            *ruled,
            *blocks,
            *(replace(self, policy="", head="", verifier=name) for name in ("match", "coupled")),
        )

    @classmethod
    def variants(cls) -> Sequence[Speculative]:
        verifiers = [cls("toy", 3, verifier) for verifier in VERIFIERS[1:]]
        by_law = [cls("toy", 3, "block", policy) for policy in ("conf:0.6", "keep:0.6", "entropy:0.6")]
        rules = ("thresholds:1,1", "fly:1,1.1", "thresholds:0.5,0.7", *DECLARED, "typical:0.9,0.3", "relaxed")
        lossy = [cls("toy", 2, acceptance=rule) for rule in rules]
        return (
            cls("toy", 3),
            cls("self", 2),
            cls("toy:vocab=tli", 3),
            cls("toy:vocab=slem", 3),
            *verifiers,
            *by_law,
            cls("toy", 3, policy="p_min:0.5"),
            cls("toy", 4, "block", "head:0.6", head="toy"),
            cls("toy", 3, policy="budget:1"),
            cls("toy", 3, mask="pard"),
            cls("toy", 3, "block", "conf:0.6", mask=1),
            *lossy,
            *(cls("toy", 3, acceptance=rule) for rule in ("fly:1,0.3", "fly:2,0.3")),
        )
