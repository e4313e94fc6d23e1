"""llama.cpp's server through ``/completion``: ids in and out, drafts of each request, and its counters.

Counters are exported if it was started with ``--metrics``. Requests tell drafted and accepted tokens and no steps:
the steps with a draft come from the counters. ``timings`` lacks the keys of drafts where nothing was drafted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import AcceptanceCounts, Chunk, EngineRequest, Tells, whole, whole_list
from stridebench.harness.engines.answer import ArrivingAnswer, StreamEvent, rows_of
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.registry import ENGINES


@ENGINES.register("llama_cpp")
@dataclass
class LlamaCpp(OpenAI):
    """llama.cpp's server; a request tells drafted and accepted tokens, its counters also steps and positions."""

    url: str = "http://127.0.0.1:8080"

    tells: ClassVar[Tells] = Tells(
        takes_ids=True,
        gives_ids=True,
        arrival="token",
        acceptance=("drafted", "accepted"),
        counters=("output_tokens", "draft_steps", "drafted", "accepted", "per_position"),
        logprobs=True,
    )
    path: ClassVar[str] = "/completion"
    metrics: ClassVar[Mapping[str, str]] = {
        "output_tokens": "llamacpp:tokens_predicted_total",
        "draft_steps": "llamacpp:spec_decode_num_drafts_total",
        "drafted": "llamacpp:spec_decode_num_draft_tokens_total",
        "accepted": "llamacpp:spec_decode_num_accepted_tokens_total",
    }
    position_metric: ClassVar[str] = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"

    def fields(self, request: EngineRequest) -> dict[str, object]:
        """Send every option of sampling: the defaults of the server cut with top-k 40, top-p and min-p."""
        return {
            "prompt": self.prompt_of(request),
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": 0.0,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
            **({"n_probs": request.top_logprobs} if request.top_logprobs else {}),
            **self.body,
        }

    def read(self, event: StreamEvent, answer: ArrivingAnswer) -> None:
        """A message holds a token or several; the last one holds the timings."""
        data = event.data
        ids = list(whole_list(data.get("tokens")) or ())
        if not data.get("stop"):
            answer.tokens += ids
            answer.rows += rows_of({"content": data.get("completion_probabilities") or []})
            answer.text.append(str(data.get("content") or ""))
            answer.chunks.append(Chunk(event.arrived_ns, len(ids) or None))
            return
        answer.text.append(str(data.get("content") or ""))
        answer.finish = str(data.get("stop_type") or "stop")
        answer.acceptance = self.acceptance(data, answer)
        told = {"completion_tokens": "tokens_predicted", "prompt_tokens": "tokens_evaluated"}
        answer.usage = {ours: data[name] for ours, name in told.items() if data.get(name) is not None}

    def acceptance(self, data: Mapping[str, Any], answer: ArrivingAnswer) -> AcceptanceCounts | None:
        """Of the timings."""
        timings = data.get("timings") or {}
        if "predicted_n" not in timings:
            return None
        drafted, accepted = (whole(timings.get(key, 0)) for key in ("draft_n", "draft_n_accepted"))
        return AcceptanceCounts(drafted=drafted, accepted=accepted)
