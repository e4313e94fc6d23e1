"""CLLM: Jacobi decoding in blocks, on a model that was tuned to map any state of a block to its fixed point.

Source: Kou et al. 2024, CLLMs: consistency large language models, arXiv:2403.00835, sections 3.1 and 3.3.
Symbols: n tokens of a block, p the target's distributions.
The tuned model is the target: `stride train backbone cllm-embedded-code` makes one. Decoding is exact with regard to
that tuned model, decoded autoregressively. Its card says how far it is from the model that it was tuned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi.cllm_block import CLLMBlock
from stridebench.methods.verifiers.mutants import BONUS_AFTER_REJECTION, GUESS_ALWAYS_KEPT, GUESS_JUDGED_BY_NEXT_ROW
from stridebench.methods.verifiers.rejection import verify_chain


@METHODS.register("cllm")
@dataclass(frozen=True)
class Cllm(Method[CLLMBlock]):
    """Read what is left of a block, commit the prefix that is stable and the token behind it, predict the rest anew.

    A block at its fixed point gives the first token of the next one in the same pass. Unlike in `jacobi`, nothing is
    guessed behind it before that.

    Args:
        block: n, rows of its first pass, the re-fed token included. Tokens a pass are n over its passes.
    """

    block: int = 16

    claim = Claim.SAME_GREEDY
    source = "arXiv:2403.00835, sections 3.1 and 3.3"
    mutants = (GUESS_ALWAYS_KEPT, GUESS_JUDGED_BY_NEXT_ROW, BONUS_AFTER_REJECTION)

    def __post_init__(self) -> None:
        if self.block < 2:
            raise UsageError(f"cllm: block is {self.block}; it holds the re-fed token and at least one guess")

    def start(self, run: Run) -> CLLMBlock:
        return CLLMBlock.empty(run, self.block)

    def step(self, run: Run, state: CLLMBlock) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, None, p, run.draws)
        state.advance(p, len(acceptance.read().path))
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Cllm]:
        return (cls(block=3), cls(block=2))
