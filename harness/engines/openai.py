"""Any endpoint that speaks OpenAI's completions, and the base of the servers that say more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    Counters,
    Engine,
    EngineFault,
    EngineRequest,
    Reply,
    Tells,
    Weights,
)
from stridebench.harness.engines.answer import Answer, Event
from stridebench.harness.engines.keys import KEY_ENV
from stridebench.harness.engines.prometheus import read_counters
from stridebench.harness.engines.server import Server
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import ENGINES


@ENGINES.register("openai")
@dataclass
class OpenAI(Engine):
    """Completions of any OpenAI-compatible server; it tells text, times and, where offered, log-probabilities.

    Args (options of a suite's entry):
        url: of the server, without /v1.
        model: the name that it serves; "": the first of its list.
        key_env: the environment variable that holds its key.
        timeout_s: between two bytes of an answer.
        prompt: "ids" sends token ids, "text" the text.
        body: further fields of every request, such as a server's own options.
    """

    url: str = "http://127.0.0.1:8000"
    model: str = ""
    key_env: str = KEY_ENV
    timeout_s: float = 600
    prompt: str = "ids"
    body: Mapping[str, Any] = field(default_factory=dict)

    tells: ClassVar[Tells] = Tells(takes_ids=True, gives_ids=False, arrival="chunk", logprobs=True, seed="if offered")
    path: ClassVar[str] = "/v1/completions"
    metrics_path: ClassVar[str] = "/metrics"
    metrics: ClassVar[Mapping[str, str]] = {}
    position_metric: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.prompt not in ("ids", "text"):
            raise UsageError(f"prompt is {self.prompt!r}; write ids or text")

    def open(self, weights: Weights) -> None:
        """Find the server, and the model that it serves."""
        self.server = Server(self.url, self.key_env, self.timeout_s)
        listed = self.server.json("/v1/models")
        entries = listed.get("data") if isinstance(listed, Mapping) else None
        names = [str(entry["id"]) for entry in entries or () if isinstance(entry, Mapping) and "id" in entry]
        self.served = self.model or next(iter(names), "")
        if self.served not in names:
            told = ", ".join(names) or "nothing"
            raise self.server.fault("not_served", f"{self.model or 'no model'}: {self.url} serves ", told)

    def close(self) -> None:
        """Close the connections."""
        if hasattr(self, "server"):
            self.server.close()

    def told(self) -> dict[str, Any]:
        """The name of the model."""
        return {"model": self.server.hidden(self.served)}

    def counters(self) -> Counters | None:
        """Read from the server's metrics; None where it exports none of them."""
        if not self.metrics:
            return None
        try:
            text = self.server.text(self.metrics_path)
        except EngineFault as fault:
            if fault.kind in ("refused", "server_error"):
                return None  # the server was started without them
            raise
        counters = read_counters(text, self.metrics, self.position_metric)
        return counters if counters.values or counters.per_position else None

    def generate(self, request: EngineRequest) -> Reply:
        """One stream."""
        answer = Answer()
        for event in self.server.events(self.path, self.fields(request)):
            try:
                self.read(event, answer)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise self.server.fault("malformed", f"{self.path} sent ({error}): ", str(event.data)) from error
        reply = answer.reply(self.tells.gives_ids)
        return replace(reply, text=None if reply.text is None else self.server.hidden(reply.text))

    def fields(self, request: EngineRequest) -> dict[str, Any]:
        """The body of a request."""
        return {
            "model": self.served,
            "prompt": self.prompt_of(request),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"top_k": request.top_k} if request.top_k else {}),
            **({"ignore_eos": True} if request.ignore_eos else {}),
            **self.body,
        }

    def prompt_of(self, request: EngineRequest) -> Sequence[int] | str:
        """The prompt as ids where the entry wants them and they are known, else as text."""
        if self.prompt == "ids" and request.ids:
            return list(request.ids)
        if request.text is None:
            raise EngineFault("refused", "the prompt is known as ids alone; use prompt: ids")
        return request.text

    def read(self, event: Event, answer: Answer) -> None:
        """Take over what one message says."""
        data = event.data
        answer.usage |= data.get("usage") or {}
        for choice in data.get("choices") or []:
            ids = self.ids_of(choice)
            probs = (choice.get("logprobs") or {}).get("token_logprobs") or []
            answer.logprobs += [float("nan") if value is None else float(value) for value in probs]
            if choice.get("text") or ids:
                answer.text.append(str(choice.get("text") or ""))
                answer.tokens += ids or []
                answer.chunks.append(Chunk(event.arrived_ns, len(ids) if ids is not None else len(probs) or None))
            answer.finish = str(choice.get("finish_reason") or answer.finish)
        answer.acceptance = self.acceptance(data, answer) or answer.acceptance

    def ids_of(self, choice: Mapping[str, Any]) -> list[int] | None:
        """The ids of a message; None: not told."""
        return None

    def acceptance(self, data: Mapping[str, Any], answer: Answer) -> AcceptanceCounts | None:
        """The acceptance that a message tells; None: nothing."""
        return None
