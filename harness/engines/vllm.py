"""vLLM's server: ids of prompt and output, acceptance a request, and its counters.

Start it with ``--per-request-spec-decode-metrics summary`` (or ``detailed``); else only the counters tell acceptance. A
step without a draft is in neither number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import AcceptanceCounts, EngineRequest, Tells, finite, whole, whole_list
from stridebench.harness.engines.answer import ArrivingAnswer
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.registry import ENGINES


@ENGINES.register("vllm")
@dataclass
class VLLM(OpenAI):
    """vLLM's server, whose answers tell acceptance if it was started with --per-request-spec-decode-metrics."""

    tells: ClassVar[Tells] = Tells(
        takes_ids=True,
        gives_ids=True,
        arrival="chunk",
        acceptance=("draft_steps", "drafted", "accepted", "histogram", "told_length", "told_rate"),
        counters=("output_tokens", "draft_steps", "drafted", "accepted", "per_position"),
        logprobs=True,
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "output_tokens": "vllm:generation_tokens_total",
        "draft_steps": "vllm:spec_decode_num_drafts_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    }
    position_metric: ClassVar[str] = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

    def fields(self, request: EngineRequest) -> dict[str, object]:
        """Send every option of sampling: otherwise the server takes the defaults of the model."""
        sampling = {"top_k": request.top_k or -1, "min_p": request.min_p, "repetition_penalty": 1.0}
        named = {"return_tokens_as_token_ids": True} if request.top_logprobs else {}  # two ids may share a text
        return {"return_token_ids": True, **named, **sampling, **super().fields(request)}

    def ids_of(self, choice: Mapping[str, Any]) -> list[int] | None:
        """Sent with every message."""
        return list(whole_list(choice.get("token_ids")) or ())

    def acceptance(self, data: Mapping[str, Any], answer: ArrivingAnswer) -> AcceptanceCounts | None:
        """Of the last message."""
        told = (data.get("metrics") or {}).get("speculative_decoding")
        if not told:
            return None
        return AcceptanceCounts(
            draft_steps=whole(told.get("num_spec_steps")),
            drafted=whole(told.get("num_draft_tokens")),
            accepted=whole(told.get("num_accepted_draft_tokens")),
            histogram=whole_list(told.get("acceptance_histogram")),
            told_length=finite(told.get("mean_acceptance_length")),
            told_rate=finite(told.get("draft_acceptance_rate")),
        )
