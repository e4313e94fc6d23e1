"""A server that draws from a small table, rightly or with a fault, and sends probabilities with each token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, stride

IDS = 40
TABLE: NDArray[np.float64] = np.random.default_rng(3).normal(scale=2.0, size=(IDS, IDS))
"""The logits behind each token."""


def logprobs_behind(logits: NDArray[np.float64], token: int) -> NDArray[np.float64]:
    """The log-probabilities of the token behind another one."""
    row: NDArray[np.float64] = logits[token] - np.logaddexp.reduce(logits[token])
    return row


def cut(weights: NDArray[np.float64], top_k: int, top_p: float, min_p: float = 0.0) -> NDArray[np.float64]:
    """The probabilities after min-p, top-k and then top-p."""
    weights = np.where(weights >= min_p * weights.max(), weights, 0.0)
    order = np.argsort(-weights)
    if top_k > 0:
        weights = np.where(weights >= weights[order[top_k - 1]], weights, 0.0)
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= top_p * weights.sum()]] = 0.0
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def penalised(
    logits: NDArray[np.float64], body: Mapping[str, Any], context: Sequence[int], repeated: Sequence[int] = ()
) -> NDArray[np.float64]:
    """The logits behind the bias and the penalties of a request; repetition is of the ids in ``repeated``."""
    counts = np.bincount(np.array(context, dtype=np.int64), minlength=IDS)
    moved = logits - body.get("presence_penalty", 0.0) * (counts > 0) - body.get("frequency_penalty", 0.0) * counts
    for token, nats in body.get("logit_bias", {}).items():
        moved[int(token)] += nats
    factor = body.get("repetition_penalty", 1.0)
    stands = np.isin(np.arange(IDS), np.array(repeated, dtype=np.int64))
    changed: NDArray[np.float64] = np.where(stands, np.where(moved > 0, moved / factor, moved * factor), moved)
    return changed


@dataclass
class TableServer:
    """Draws each token from the row of the one before; the text of a prompt decides the first row.

    Args:
        stream: another one draws other tokens at the same seed.
        power: exponent of the probabilities that it draws from, not of those that it sends.
        slip: at T = 0 every so many tokens are the second best; 0: none.
        noise: standard deviation of an error in all logits of the table.
        silent: every so many tokens come without probabilities; 0: none.
        rowless: every so many tokens of an output of more than 8 come without a row of their own; 0: none.
        serves: requests that are answered before all others fail; None: none fails.
        drafted: drafts that it tells of each request, half of them accepted; None: it tells none.
        top: most probable tokens that it sends at most, and the drawn one too; ``-IDS`` sends the drawn one alone.
        stops: the id that ends an output, or -1.
        scores: a request may ask for the probabilities of a given text (`echo`), which are those of the table.
        tells_ids: it sends the ids of the prompt.
        drops: parameters of a request that it ignores, at every ``every``-th token.
        bonus_only: it heeds them at these tokens, and ignores them at all others.
        counts_prompt: penalties count the tokens of the prompt too.
        heats: the probabilities that come with an output are those behind the temperature of the request.
    """

    stream: int = 0
    power: float = 1.0
    slip: int = 0
    noise: float = 0.0
    silent: int = 0
    rowless: int = 0
    serves: int | None = None
    drafted: int | None = 8
    top: int = 20
    stops: int = -1
    scores: bool = True
    tells_ids: bool = True
    drops: tuple[str, ...] = ()
    every: int = 1
    bonus_only: bool = False
    counts_prompt: bool = False
    heats: bool = False

    def __post_init__(self) -> None:
        self.logits = TABLE + np.random.default_rng(4).normal(scale=self.noise, size=TABLE.shape)

    def reply(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The messages of one answer in the form of OpenAI's completions, one a token."""
        if self.serves is not None:
            self.serves -= 1
            if self.serves < 0:
                raise web.HTTPInternalServerError
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else [hashlib.sha256(prompt.encode()).digest()[0] % IDS]
        draws = np.random.default_rng([body["seed"], self.stream])
        top, last, events = min(body.get("logprobs", 0), self.top), ids[-1], []
        output: list[int] = []
        for place in range(body["max_tokens"]):
            logprobs = logprobs_behind(self.logits, last)
            last = self._next(logprobs, body, draws, ids, output)
            output.append(last)
            if self.heats:
                logprobs = logprobs_behind(self.logits / (body["temperature"] or 1), [ids[-1], *output][-2])
            events.append({"choices": [self._choice(last, logprobs, top, place)]})
            if self.rowless and body["max_tokens"] > 8 and place % self.rowless == 0:
                events[-1]["choices"][0]["logprobs"] = None
            if last == self.stops:
                break
        events[-1]["choices"][0]["finish_reason"] = "stop" if last == self.stops else "length"
        if body.get("echo") and self.scores:
            events = [*self._echoed(ids, top), *events]
        if self.tells_ids:
            events[0]["choices"][0]["prompt_token_ids"] = ids
        told: dict[str, Any] = {}
        if self.drafted is not None:
            drafted = min(self.drafted, len(events))
            counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": drafted // 2}
            told = {"metrics": {"speculative_decoding": {"num_spec_steps": drafted // 2, **counts}}}
        return [*events, {"choices": [], "usage": {"completion_tokens": len(events)}, **told}]

    def _echoed(self, ids: Sequence[int], top: int) -> Iterator[dict[str, Any]]:
        """The tokens of the prompt with their probabilities; the first has none."""
        first = {"tokens": [f"token_id:{ids[0]}"], "token_logprobs": [None], "top_logprobs": [None]}
        yield {"choices": [{"index": 0, "text": "", "finish_reason": None, "logprobs": first}]}
        for before, token in pairwise(ids):
            choice = self._choice(token, logprobs_behind(TABLE, before), top, 1)
            yield {"choices": [{key: value for key, value in choice.items() if key != "token_ids"}]}

    def _next(
        self,
        logprobs: NDArray[np.float64],
        body: Mapping[str, Any],
        draws: np.random.Generator,
        ids: Sequence[int],
        output: Sequence[int],
    ) -> int:
        place = len(output)
        dropping = ((place + 1) % self.every == 0) != self.bonus_only
        kept = {key: value for key, value in body.items() if not (dropping and key in self.drops)}
        logprobs = penalised(logprobs, kept, [*(ids if self.counts_prompt else []), *output], [*ids, *output])
        temperature = kept.get("temperature", 1.0)
        if temperature == 0:
            slips = bool(self.slip) and place % self.slip == self.slip - 1
            return int(np.argsort(-logprobs)[1 if slips else 0])
        cuts = kept.get("top_k", 0), kept.get("top_p", 1.0), kept.get("min_p", 0.0)
        weights = cut(np.exp(self.power * logprobs / temperature), *cuts)
        return int(draws.choice(IDS, p=weights))

    def _choice(self, token: int, logprobs: NDArray[np.float64], top: int, place: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": f" {token}", "token_ids": [token], "finish_reason": None}
        if top:
            silent = bool(self.silent) and place % self.silent == 0
            kept = [] if silent else list(dict.fromkeys([*np.argsort(-logprobs)[:top], token]))
            row = {f"token_id:{one}": float(logprobs[one]) for one in kept}
            value = 0.0 if silent else float(logprobs[token])
            choice["logprobs"] = {"tokens": [f"token_id:{token}"], "token_logprobs": [value], "top_logprobs": [row]}
        return choice


def sglang_reply(server: TableServer, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The answer of a table server in the form of SGLang's ``/generate``, in one message."""
    sampling = body["sampling_params"]
    asked = {"prompt": body.get("input_ids", body.get("text")), "max_tokens": sampling["max_new_tokens"], **sampling}
    top, echo = body.get("top_logprobs_num", 0), body.get("logprob_start_len") == 0
    events = server.reply({**asked, "seed": sampling["sampling_seed"], "logprobs": top, "echo": echo})
    choices = [event["choices"][0] for event in events if event["choices"]]
    tops = [choice["logprobs"]["top_logprobs"][0] or {} for choice in choices]
    triples = [[[value, int(name.split(":")[1]), None] for name, value in row.items()] for row in tops]
    probs = [
        [choice["logprobs"]["token_logprobs"][0], int(choice["logprobs"]["tokens"][0].split(":")[1]), None]
        for choice in choices
    ]
    read = len(choices) - sampling["max_new_tokens"] if echo else 0
    told = {"output_token_logprobs": probs[read:], "output_top_logprobs": triples[read:]}
    if echo:
        told |= {"input_token_logprobs": probs[:read], "input_top_logprobs": [None, *triples[1:read]]}
    meta = {"completion_tokens": len(choices) - read, "finish_reason": {"type": "length"}, **told}
    return [{"text": "", "output_ids": [one[1] for one in probs[read:]], "meta_info": meta}]


def llama_reply(server: TableServer, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The answer of a table server in the form of llama.cpp, whose penalties count the prompt too."""
    ids = body["prompt"] if isinstance(body["prompt"], list) else [7]
    asked = {**body, "prompt": ids, "max_tokens": body["n_predict"], "logprobs": body.get("n_probs", 0)}
    asked["repetition_penalty"] = body.get("repeat_penalty", 1.0)
    events = []
    for event in server.reply(asked)[:-1]:
        choice = event["choices"][0]
        named = {int(name.split(":")[1]): value for name, value in choice["logprobs"]["top_logprobs"][0].items()}
        entry: dict[str, Any] = {"id": choice["token_ids"][0], "token": choice["text"]}
        entry["top_logprobs"] = [{"id": one, "token": "", "logprob": value} for one, value in named.items()]
        if body.get("post_sampling_probs"):
            behind = penalised(logprobs_behind(TABLE, ids[-1]), asked, ids, ids)
            law = np.exp(behind - np.logaddexp.reduce(behind))
            del entry["top_logprobs"]
            entry["top_probs"] = [{"id": int(one), "prob": float(law[one])} for one in np.argsort(-law)[:20]]
        probs = {"completion_probabilities": [entry], "stop": False}
        events.append({"content": "", "tokens": choice["token_ids"], **probs})
    return [*events, {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": len(events)}]


def written_prompts(folder: Path) -> Path:
    """Write a file of twelve prompts, and return its path."""
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(12)))
    return path


def outcome_of(
    verb: tuple[str, ...],
    own: TableServer,
    plain: TableServer | None,
    prompts: Path,
    *words: object,
    owner: str = "vllm",
    metrics: Sequence[str] = (),
) -> Outcome:
    """Run a command on a table server with a name and counters, and on its plain decode if there is one."""
    forms = {"sglang": sglang_reply, "llamacpp": llama_reply}

    def answers(one: TableServer) -> Answers:
        form = forms.get(owner)
        return Answers(reply=one.reply if form is None else partial(form, one), owner=owner, tokenised=(7,))

    with answer_server(replace(answers(own), metrics=list(metrics))) as server:
        command = (*verb, server.url, "--prompts", prompts, *words)
        if plain is None:
            return stride(*command)
        with answer_server(answers(plain)) as other:
            return stride(*command, "--plain", other.url)
