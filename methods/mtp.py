"""Multi-token prediction: one layer with norms and a join, which a checkpoint ships, drafts a chain token by token.

Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; Qwen3-Next, GLM-4.5 and MiMo ship such layers. Verifier `block`: Sun
et al. 2025, arXiv:2403.10444, Algorithm 2.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, K drafts.
The layer reads the target's row of a token with the next token. A draft behind the first one reads the layer's output
in place of that row, as engines do that use one layer for several depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import DraftLength
from stridebench.methods.drafters.eagle.static_tree import DROPPED_FOR_ITS_PROBABILITY, StaticDrafter, grow_static
from stridebench.methods.drafters.tree_shapes import MOST_PROBABLE_SIBLINGS
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET


@METHODS.register("mtp")
@dataclass(frozen=True)
class MultiTokenPrediction(Method[StaticDrafter]):
    """Draft K tokens with a layer for multi-token prediction; keep the prefix that the target accepts.

    Args:
        features: the layer: trained for the backbone at hand (NAME-BACKBONE), or a published folder, of which the
            ``mtp.`` keys are read.
        depth: K.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
        policy: where a chain ends, as in ``speculative``.
    """

    features: str = "mtp"
    depth: int = 3
    verifier: Literal["token", "block"] = "token"
    policy: str = ""

    claim = Claim.SAME_LAW
    source = "arXiv:2412.19437, section 2.2"
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN})
    taps = (-1,)
    mutants = (MOST_PROBABLE_SIBLINGS, DROPPED_FOR_ITS_PROBABILITY, CORRECTION_FROM_TARGET, RATIO_CAPPED_ONCE)

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise UsageError(f"mtp: depth is {self.depth}; draft at least one token")
        if self._length().name == "p_min":
            raise UsageError("mtp: policy p_min is for drafts that are not drawn; take conf")

    def _length(self) -> DraftLength:
        return DraftLength.of("mtp", self.policy, self.depth)

    def start(self, run: Run) -> StaticDrafter:
        return StaticDrafter.open(run, self.features, "", (1,) * self.depth, self._length(), "mtp")

    def step(self, run: Run, state: StaticDrafter) -> Acceptance:
        tree = grow_static(run, state)
        draft = Draft(tree.tokens, tree.probs)  # one child below each node: a chain
        p = run.probs(run.target.forward(draft))
        acceptance = CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)
        state.length.follow(len(draft), acceptance)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[MultiTokenPrediction]:
        return (cls(), cls(depth=2, verifier="block"), cls(depth=2, policy="keep:0.6"))
