"""Another package's function that accepts and resamples drafts, held against known distributions.

Distributions of each place are fixed and do not depend on the tokens before it. So the token that is emitted at a place
must come from the target's distribution there, whether it is an accepted draft, a correction or the bonus token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.errors import ContractError
from stridebench.harness.registry import KERNELS

Kernel = Callable[[Float[Tensor, "K+1 V"], Float[Tensor, "K V"], Int[Tensor, " K"]], Sequence[int]]
"""The tokens that it emits for the target's distributions p, the drafter's q, and drafts x ~ q: 1 to K + 1 of them.

It draws from torch's default generator.
"""

DRAFTS, VOCABULARY = 3, 6
ALPHA = 0.05
"""Probability that any interval of a report misses its total variation, at most."""


@dataclass(frozen=True)
class KernelPosition:
    """The tokens that a kernel emitted at one place.

    Args:
        case: which drafter.
        place: from 0.
        tokens: number of trials that reached it.
        total_variation: between the tokens and the target's distribution.
        low: bound of the true total variation from below; above 0 the kernel is biased.
        high: bound from above.
    """

    case: str
    place: int
    tokens: int
    total_variation: float
    low: float
    high: float

    @property
    def biased(self) -> bool:
        """Whether the tokens cannot come from the target's distribution."""
        return self.low > 0


def cases(seed: int = 0) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, p and q of drafters that are far, near, without some of the ids, and sure of one id."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(DRAFTS + 1, VOCABULARY, generator=generator)
    p = z.softmax(-1)
    far = (1.5 * torch.randn(DRAFTS, VOCABULARY, generator=generator)).softmax(-1)
    part = far * (torch.arange(VOCABULARY) % 2 == 0)
    yield "far drafter", p, far
    yield "near drafter", p, (z[:DRAFTS] / 1.1).softmax(-1)
    yield "drafter of half of the ids", p, part / part.sum(-1, keepdim=True)
    yield "point masses", p, torch.nn.functional.one_hot(p[:DRAFTS].topk(2).indices[:, 1], VOCABULARY).float()


def check_kernel(kernel: Kernel, trials: int, seed: int = 0) -> list[KernelPosition]:
    """Check every place of every case, after so many trials each.

    The interval is the plug-in total variation, plus and minus the bound of Weissman et al. 2003 ("Inequalities for the
    L1 deviation of the empirical distribution"), at a level that holds for all places together.

    Raises:
        ContractError: the kernel emits no token, too many, or one outside the vocabulary, or raises an error.
    """
    places: list[KernelPosition] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for case, p, q in cases(seed):
            counts = torch.zeros(DRAFTS + 1, VOCABULARY)
            for _ in range(trials):
                drafts = torch.multinomial(q, 1)[:, 0]
                tokens = _emitted(kernel, p, q, drafts)
                if not 1 <= len(tokens) <= DRAFTS + 1 or not all(0 <= token < VOCABULARY for token in tokens):
                    raise ContractError(
                        f"the kernel emitted {tokens} for {DRAFTS} drafts of {VOCABULARY} ids; return the accepted "
                        f"drafts and one more token"
                    )
                counts[range(len(tokens)), tokens] += 1
            places += [_place(case, place, counts[place], p[place]) for place in range(DRAFTS + 1)]
    return places


def _emitted(kernel: Kernel, p: Tensor, q: Tensor, drafts: Tensor) -> list[int]:
    try:
        return list(map(int, kernel(p.clone(), q.clone(), drafts)))
    except Exception as error:  # a kernel of another package may raise anything
        raise ContractError(f"the kernel raised {type(error).__name__}: {error}") from error


def _place(case: str, place: int, counts: Float[Tensor, " V"], law: Float[Tensor, " V"]) -> KernelPosition:
    tokens = int(counts.sum())
    if not tokens:
        return KernelPosition(case, place, 0, 0.0, 0.0, 1.0)
    distance = float((counts / tokens - law).abs().sum() / 2)
    tests = 4 * (DRAFTS + 1)
    reach = math.sqrt(2 * math.log((2**VOCABULARY - 2) * tests / ALPHA) / tokens) / 2
    return KernelPosition(case, place, tokens, distance, max(0.0, distance - reach), min(1.0, distance + reach))


@KERNELS.register("transformers")
def transformers_kernel(p: Float[Tensor, "K+1 V"], q: Float[Tensor, "K V"], drafts: Int[Tensor, " K"]) -> list[int]:
    """`_speculative_sampling` of transformers, as its assisted generation with sampling calls it."""
    from transformers.generation.utils import _speculative_sampling

    tokens, _ = _speculative_sampling(drafts[None], q.log()[None], len(drafts), p.log()[None])
    return [int(token) for token in tokens[0]]


PROMPT, HIDDEN = 3, 2


class Gemma4AssistantStandIn:
    """A drafting model whose k-th call of a step gives the k-th distribution; the library asks for its class's name.

    Args:
        logits: one row a draft.
    """

    def __init__(self, logits: Float[Tensor, "K V"]) -> None:
        self.generation_config = SimpleNamespace(num_assistant_tokens=len(logits))
        self.device = logits.device
        self._rows = iter(logits)

    def __call__(self, **inputs: Any) -> Any:
        return SimpleNamespace(logits=next(self._rows)[None, None], last_hidden_state=torch.zeros(1, 1, HIDDEN))


@KERNELS.register("transformers_single_position")
def single_position(p: Float[Tensor, "K+1 V"], q: Float[Tensor, "K V"], drafts: Int[Tensor, " K"]) -> list[int]:
    """`SinglePositionMultiTokenCandidateGenerator` with `_speculative_sampling`, as sampling with a Gemma 4 assistant.

    The generator drafts itself, and ``drafts`` are not used.
    """
    from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator
    from transformers.generation.utils import _speculative_sampling

    size = p.shape[1]
    model = Gemma4AssistantStandIn(q.log())
    limits = SimpleNamespace(max_length=PROMPT + len(q) + 2)
    generator = SinglePositionMultiTokenCandidateGenerator(model, torch.nn.Embedding(size, HIDDEN), limits)
    prompt = torch.zeros(1, PROMPT, dtype=torch.long)
    outputs = SimpleNamespace(hidden_states=(torch.zeros(1, PROMPT, HIDDEN),), shared_kv_states={})
    ids, logits = generator.get_candidates(prompt, {}, outputs, is_first_iteration=False, n_last_matches=0)
    tokens, _ = _speculative_sampling(ids, logits, len(q), p.log()[None])
    return [int(token) for token in tokens[0]]
