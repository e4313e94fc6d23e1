"""TensorRT-LLM's server: tokens a target pass of each request, and its counters.

Tested on recorded answers of the documented form; the engine itself needs a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import AcceptanceCounts, Tells, finite
from stridebench.harness.engines.answer import ArrivingAnswer
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.registry import ENGINES


@ENGINES.register("tensorrt_llm")
@dataclass
class TensorRTLLM(OpenAI):
    """TensorRT-LLM's server; a request tells its mean of tokens a pass, the counters drafted and accepted tokens."""

    tells: ClassVar[Tells] = Tells(
        takes_ids=True,
        gives_ids=False,
        arrival="chunk",
        acceptance=("told_length",),
        counters=("drafted", "accepted"),
        logprobs=True,
    )
    metrics_path: ClassVar[str] = "/prometheus/metrics"
    metrics: ClassVar[Mapping[str, str]] = {
        "drafted": "trtllm_spec_decode_num_draft_tokens_total",
        "accepted": "trtllm_spec_decode_num_accepted_tokens_total",
    }

    def acceptance(self, data: Mapping[str, Any], answer: ArrivingAnswer) -> AcceptanceCounts | None:
        """The mean over target passes, which its last message tells."""
        places = [data, *(data.get("choices") or [])]
        told = [place.get("avg_decoded_tokens_per_iter") for place in places]
        length = next((value for value in told if value is not None), None)
        return None if length is None else AcceptanceCounts(told_length=finite(length))
