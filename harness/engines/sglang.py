"""SGLang's server through ``/generate``: ids in and out, and acceptance of each request under its new or its old names.

Tested on recorded answers of the documented form; the engine itself needs a GPU. A given text is scored by the
log-probabilities of its input (``logprob_start_len`` 0). A seed decides the output only where
the server was started with ``--enable-deterministic-inference``. It counts tokens if it was started with
``--enable-metrics``; its figures of acceptance are gauges, means that no requests can be held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    EngineRequest,
    Tells,
    TokenRow,
    finite,
    whole,
    whole_list,
)
from stridebench.harness.engines.answer import ArrivingAnswer, StreamEvent, penalty_fields, row_of
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.registry import ENGINES


@ENGINES.register("sglang")
@dataclass
class SGLang(OpenAI):
    """SGLang's server; every verified pass is a step, with a draft or without."""

    tells: ClassVar[Tells] = Tells(
        takes_ids=True,
        gives_ids=True,
        arrival="chunk",
        acceptance=("draft_steps", "drafted", "accepted", "histogram", "told_length", "told_rate"),
        counters=("output_tokens",),
        logprobs=True,
        seed="with --enable-deterministic-inference",
    )
    path: ClassVar[str] = "/generate"
    metrics: ClassVar[Mapping[str, str]] = {"output_tokens": "sglang:generation_tokens_total"}

    def fields(self, request: EngineRequest) -> dict[str, object]:
        """The body in the form of ``/generate``."""
        prompt = self.prompt_of(request)
        sampling = {
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or -1,
            "min_p": request.min_p,
            **penalty_fields(request.penalties, "repetition_penalty"),
            "ignore_eos": request.ignore_eos,
            "sampling_seed": request.seed,
        }
        asked = {"return_logprob": True, "top_logprobs_num": request.top_logprobs} if request.top_logprobs else {}
        asked |= {"logprob_start_len": 0} if request.echo else {}
        source = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        return {**source, **asked, "sampling_params": sampling, "stream": True, **self.body}

    def read(self, event: StreamEvent, answer: ArrivingAnswer) -> None:
        """Read outputs that are sent whole with every message, or piece by piece, as the server was started."""
        meta = event.data.get("meta_info") or {}
        ids = list(whole_list(event.data.get("output_ids")) or ())
        total, before = whole(meta.get("completion_tokens")), len(answer.tokens)
        text = str(event.data.get("text") or "")
        so_far = total is not None and len(ids) == total
        answer.tokens = ids if so_far else answer.tokens + ids
        answer.text = [text] if so_far else [*answer.text, text]
        if len(answer.tokens) > before:
            answer.chunks.append(Chunk(event.arrived_ns, len(answer.tokens) - before))
        if read := meta.get("input_token_logprobs"):  # of a text that is scored; a later message has them again
            answer.prompt_ids = whole_list([one[1] for one in read])
            answer.rows = _rows(read, meta.get("input_top_logprobs")) + answer.rows[len(read) :]
        if probs := meta.get("output_token_logprobs"):
            rows, earlier = _rows(probs, meta.get("output_top_logprobs")), len(answer.prompt_ids or ())
            answer.rows = answer.rows[:earlier] + rows if len(rows) == total else answer.rows + rows
        answer.usage |= {key: meta[key] for key in ("completion_tokens", "prompt_tokens") if key in meta}
        answer.finish = _finish(meta.get("finish_reason")) or answer.finish
        answer.acceptance = self.acceptance(meta, answer) or answer.acceptance

    def acceptance(self, data: Mapping[str, Any], answer: ArrivingAnswer) -> AcceptanceCounts | None:
        """Of the last message; new names are read first."""
        steps = whole(data.get("spec_verify_ct"))
        if steps is None:
            return None
        return AcceptanceCounts(
            draft_steps=steps,
            drafted=whole(_first(data, "spec_num_proposed_drafts", "spec_draft_token_num")),
            accepted=whole(_first(data, "spec_num_correct_drafts", "spec_accept_token_num")),
            histogram=whole_list(_first(data, "spec_correct_drafts_histogram", "spec_accept_histogram")),
            told_length=finite(data.get("spec_accept_length")),
            told_rate=finite(data.get("spec_accept_rate")),
        )


def _rows(probs: Sequence[Any], tops: Sequence[Any] | None) -> list[TokenRow]:
    """Return rows of triples of log-probability, id and text; the first token of a text has no probabilities."""
    pairs = zip(probs, tops or [None] * len(probs), strict=True)
    return [row_of(f"id {one[1]}", ((f"id {entry[1]}", entry[0]) for entry in top or ())) for one, top in pairs]


def _first(data: Mapping[str, Any], *names: str) -> Any:
    """The value of the first name that is there."""
    return next((data[name] for name in names if data.get(name) is not None), None)


def _finish(reason: Any) -> str:
    """The word of a reason, which is a mapping in newer versions."""
    return str(reason.get("type") or "") if isinstance(reason, Mapping) else str(reason or "")
