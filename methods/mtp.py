"""Multi-token prediction: one layer with norms and a join, which a checkpoint ships, drafts a chain token by token.

Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; Qwen3-Next, GLM-4.5 and MiMo ship such layers.
Symbols: x drafted tokens, q the drafter's distributions, p the target's, K drafts.
The layer reads the target's row of a token with the next token. A draft behind the first one reads the layer's output
in place of that row, as engines do that use one layer for several depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.eagle.static_tree import ChainMethod, StaticDrafter, grow_chain


@METHODS.register("mtp")
@dataclass(frozen=True)
class MultiTokenPrediction(ChainMethod):
    """Draft K tokens with a layer for multi-token prediction; keep the prefix that the target accepts.

    Args:
        features, depth, verifier, policy: see `ChainMethod`. Of a published folder the ``mtp.`` keys are read.
    """

    features: str = "mtp"

    source = "arXiv:2412.19437, section 2.2"
    taps = (-1,)

    def start(self, run: Run) -> StaticDrafter:
        return self.open_chains(run, "mtp")

    def step(self, run: Run, state: StaticDrafter) -> Acceptance:
        draft = grow_chain(run, state)
        p = run.probs(run.target.forward(draft))
        return self.verified(run, state, draft, p)

    @classmethod
    def variants(cls) -> Sequence[MultiTokenPrediction]:
        return (cls(), cls(depth=2, verifier="block"), cls(depth=2, policy="keep:0.6"))
