"""Candidate generators of transformers with the acceptance that `generate` gives them, as kernels of `stride audit`.

The library's own code drafts and accepts. Only the drafting model is a stand-in, whose distributions are those of the
case.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.registry import KERNELS

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

    The generator makes its own drafts, and ``drafts`` are not used.
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
