"""llama.cpp's server through ``/completion``: ids in and out, drafts of each request, and its counters.

Counters are exported if it was started with ``--metrics``. Requests tell drafted and accepted tokens and no steps:
the steps with a draft come from the counters. ``timings`` lacks the keys of drafts where nothing was drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    EngineFault,
    EngineRequest,
    Penalties,
    Tells,
    TokenRow,
    whole,
    whole_list,
)
from stridebench.harness.engines.answer import ArrivingAnswer, StreamEvent, penalty_fields, rows_of
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.registry import ENGINES

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""The order of other engines: by itself llama.cpp divides by the temperature after the cuts."""


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
    scores_penalised: ClassVar[bool] = True
    path: ClassVar[str] = "/completion"
    metrics: ClassVar[Mapping[str, str]] = {
        "output_tokens": "llamacpp:tokens_predicted_total",
        "draft_steps": "llamacpp:spec_decode_num_drafts_total",
        "drafted": "llamacpp:spec_decode_num_draft_tokens_total",
        "accepted": "llamacpp:spec_decode_num_accepted_tokens_total",
    }
    position_metric: ClassVar[str] = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"

    def fields(self, request: EngineRequest) -> dict[str, object]:
        """Send every option of sampling: the defaults of the server cut with top-k 40, top-p and min-p.

        Penalties look back over the whole text: a text has no more tokens than bytes and a few special ones. Newer
        builds refuse -1, which was the word for it.
        """
        prompt = self.prompt_of(request)
        whole_text = len(prompt.encode() if isinstance(prompt, str) else prompt) + request.max_tokens + 8
        return {
            "prompt": prompt,
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "samplers": SAMPLERS,
            **penalty_fields(request.penalties, "repeat_penalty"),
            **({} if request.penalties == Penalties() else {"repeat_last_n": whole_text}),
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
            **({"n_probs": request.top_logprobs} if request.top_logprobs else {}),
            **self.body,
        }

    def tokenise(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text as the server reads it as a prompt."""
        told = self.server.json("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return whole_list(told.get("tokens") if isinstance(told, Mapping) else None) or ()

    def score(
        self, ids: Sequence[int], output: Sequence[int], width: int, penalties: Penalties
    ) -> tuple[TokenRow, ...]:
        """Return the probabilities of each token of an output: one request a token, on the cached prefix.

        The first request reads the whole prompt, as the decode did: what another prompt left in the cache was computed
        in other batches, and in 4 bits that moves a probability by up to 0.2.

        With penalties they are those of the server's own sampler behind its penalties, which a request of one token
        applies where nothing is drafted.
        """
        rows = []
        for place, token in enumerate(output):
            text = (*ids, *output[:place])
            request = EngineRequest(text, None, 1, temperature=1.0, penalties=penalties, top_logprobs=width)
            body = {**self.fields(request), "cache_prompt": place > 0}
            if penalties != Penalties():
                body |= {"samplers": ["penalties"], "post_sampling_probs": True}
            answer = self.answered(body, again=True)
            if not answer.rows:
                raise EngineFault("malformed", f"{self.url}{self.path} sent no probabilities of a token")
            rows.append(TokenRow(f"id {token}", answer.rows[0].top))
        return tuple(rows)

    def read(self, event: StreamEvent, answer: ArrivingAnswer) -> None:
        """A message holds a token or several; the last one holds the timings."""
        data = event.data
        ids = list(whole_list(data.get("tokens")) or ())
        if not data.get("stop"):
            answer.tokens += ids
            # a token that ends within a character has no message, so its id is lost
            counted = whole(data.get("tokens_predicted"))
            answer.lost = answer.lost or (counted is not None and counted > len(answer.tokens))
            rows = rows_of({"content": data.get("completion_probabilities") or []})
            answer.rows += rows or [TokenRow(f"id {token}", {}) for token in ids]  # accepted drafts come without
            answer.text.append(str(data.get("content") or ""))
            answer.chunks.append(Chunk(event.arrived_ns, len(ids) or None))
            return
        answer.text.append(str(data.get("content") or ""))
        answer.finish = str(data.get("stop_type") or "stop")
        if answer.lost or not any(row.top for row in answer.rows):
            answer.rows = []
        answer.tokens = [] if answer.lost else answer.tokens
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
