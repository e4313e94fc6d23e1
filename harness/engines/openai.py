"""Any endpoint that speaks OpenAI's completions, and the base of the servers that say more."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    Counters,
    Engine,
    EngineFault,
    EngineRequest,
    EngineWeights,
    Penalties,
    Reply,
    Tells,
    TokenRow,
    whole_list,
)
from stridebench.harness.engines.answer import (
    KEY_ENV,
    LOOPBACK,
    ArrivingAnswer,
    ServerKey,
    StreamEvent,
    host_of,
    penalty_fields,
    rows_of,
)
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.registry import ENGINES

# One server over HTTP: its answers as JSON, its streams as events with their times, its faults by kind.


LONGEST_QUOTE = 200
KEPT_S = 1.0
"""How long an idle connection is kept: less than servers keep theirs (5 s and more), so that none is closed in use."""


class Server:
    """A server at an address.

    Args:
        url: without the path of an endpoint.
        key_env: the environment variable that holds its key; a key is never stored or printed.
        timeout_s: between two bytes of an answer.

    Raises:
        UsageError: the address is not a URL, the key is not valid, or the extra is not installed.
    """

    def __init__(self, url: str, key_env: str, timeout_s: float) -> None:
        self._httpx = optional("httpx", "an engine behind a URL", "engines")
        host, self.url = host_of(url, key_env), url.rstrip("/")
        self._sse = optional("httpx_sse", "an engine behind a URL", "engines")
        self._key = ServerKey(key_env)
        self._client = self._httpx.Client(
            base_url=self.url,
            headers=self._key.headers,
            timeout=self._httpx.Timeout(timeout_s, connect=min(timeout_s, 10)),
            limits=self._httpx.Limits(max_connections=None, keepalive_expiry=KEPT_S),
            trust_env=host not in LOOPBACK,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def models(self) -> list[Mapping[str, Any]]:
        """Return the entries of its list of models. EngineFault: it did not answer with JSON."""
        listed = self.json("/v1/models")
        entries = listed.get("data") if isinstance(listed, Mapping) else None
        return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of an endpoint, to which ``body`` is posted. EngineFault: it did not answer with JSON."""
        text = self.text(path, body)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fault("malformed", f"{self.url}{path} answered no JSON: ", repr(text)) from error

    def text(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Return the text of an endpoint, to which ``body`` is posted. EngineFault: it did not answer."""
        with self._faults(path):
            response = self._read(path, body)
            self._check(response, path)
            return str(response.text)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """The messages of a stream, until the server says that it is complete.

        The request is sent once, whatever happens: a server that has read it may count its tokens.

        Raises:
            EngineFault: the server failed, or the stream holds something else than JSON objects.
        """
        with self._faults(path), self._sse.connect_sse(self._client, "POST", path, json=dict(body)) as source:
            self._check(source.response, path)
            kind = str(source.response.headers.get("content-type", "none"))
            if "text/event-stream" not in kind:
                detail = f"{self.url}{path} sent {kind:.60}; switch on streaming in the server or proxy"
                raise EngineFault("no_stream", detail)
            for event in source.iter_sse():
                arrived = time.perf_counter_ns()
                if event.data == "[DONE]":
                    return
                yield StreamEvent(arrived, self._object(path, event.data))

    def _read(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return an answer that changes nothing; it is asked for again if the server closed a kept connection."""
        method, content = ("GET", {}) if body is None else ("POST", {"json": dict(body)})
        try:
            return self._client.request(method, path, **content)
        except self._httpx.RemoteProtocolError as closed:
            try:
                return self._client.request(method, path, **content)
            except self._httpx.ConnectError:
                raise closed from None

    def answers(self) -> bool:
        """Whether anything answers at the address now."""
        try:
            self._client.get("/health", timeout=5)
        except self._httpx.HTTPError:
            return False
        return True

    def _object(self, path: str, text: str) -> dict[str, object]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.fault("malformed", f"{self.url}{path} sent no JSON: ", repr(text)) from error
        if not isinstance(data, dict):
            raise self.fault("malformed", f"{self.url}{path} sent no JSON object: ", repr(text))
        if data.get("error"):
            raise self.fault("server_error", f"{self.url}{path}: ", str(data["error"]))
        return data

    def _check(self, response: Any, path: str) -> None:
        """Refuse an answer that is not a success."""
        if response.is_success:
            return
        response.read()
        code, text = response.status_code, str(response.text)
        kind = "not_served" if code == 404 and "model" in text.lower() else "refused"
        kind = "overloaded" if code == 429 else "server_error" if code >= 500 else kind
        if response.has_redirect_location:
            text = f"it redirects to {response.headers['location']}; give the address of the server itself"
        raise self.fault(kind, f"{self.url}{path} answered {code}: ", text)

    def fault(self, kind: str, where: str, text: str) -> EngineFault:
        """A fault that quotes a text of the server or the client, without the key."""
        return EngineFault(kind, where + self.hidden(text)[:LONGEST_QUOTE])

    def hidden(self, text: str) -> str:
        """A text of the server without the key."""
        return self._key.hidden(text)

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """Name the fault behind an error of the client."""
        where = f"{self.url}{path}: "
        try:
            yield
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
            raise self.fault("no_server", where, str(error)) from error
        except self._httpx.TimeoutException as error:
            raise self.fault("timeout", where, type(error).__name__) from error
        except self._httpx.TransportError as error:
            kind = "cut_short" if self.answers() else "server_died"
            raise self.fault(kind, where, f"{type(error).__name__}: {error}") from error
        except (self._sse.SSEError, self._httpx.DecodingError) as error:
            raise self.fault("malformed", where, str(error)) from error


# Counters of a server in the text format of Prometheus.


def read_counters(text: str, names: Mapping[str, str], position: str = "") -> Counters:
    """Return the acceptance counters that a server exports; those of several labels are added up.

    Args:
        text: of the server's endpoint.
        names: the sample's name of each field: output_tokens, draft_steps, drafted, accepted.
        position: the name of the counter that has a label ``position``; "": none.

    Raises:
        EngineFault: the text cannot be parsed, or a counter is NaN or infinite.
    """
    parser = optional("prometheus_client.parser", "reading a server's counters", "engines")
    fields = {name: key for key, name in names.items()}
    values: dict[str, float] = {}
    places: dict[int, float] = {}
    try:
        samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
        chosen = [sample for sample in samples if sample.name in fields or (position and sample.name == position)]
        places_of = [int(sample.labels.get("position", 0)) for sample in chosen]
    except (ValueError, KeyError, IndexError) as error:
        raise EngineFault("malformed", f"the server's counters cannot be read: {error}") from error
    for sample, place in zip(chosen, places_of, strict=True):
        if not math.isfinite(sample.value):
            raise EngineFault("not_a_number", f"the counter {sample.name} is {sample.value}")
        if sample.name == position:
            places[place] = places.get(place, 0.0) + sample.value
        else:
            key = fields[sample.name]
            values[key] = values.get(key, 0.0) + sample.value
    return Counters(values, places)


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
        sample: which of several samples is read, if ``body`` asks for them (`n`).
        body: further fields of every request, such as options of one server.
    """

    url: str = "http://127.0.0.1:8000"
    model: str = ""
    key_env: str = KEY_ENV
    timeout_s: float = 600
    prompt: str = "ids"
    sample: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)

    tells: ClassVar[Tells] = Tells(takes_ids=True, gives_ids=False, arrival="chunk", logprobs=True, seed="if offered")
    needs: ClassVar[tuple[str, ...]] = ("httpx", "httpx_sse", "prometheus_client")
    scores_penalised: ClassVar[bool] = False
    path: ClassVar[str] = "/v1/completions"
    metrics_path: ClassVar[str] = "/metrics"
    metrics: ClassVar[Mapping[str, str]] = {}
    position_metric: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.prompt not in ("ids", "text"):
            raise UsageError(f"prompt is {self.prompt!r}; write ids or text")

    def open(self, weights: EngineWeights) -> None:
        """Find the server, and the model that it serves."""
        self.server = Server(self.url, self.key_env, self.timeout_s)
        names = [str(entry["id"]) for entry in self.server.models() if "id" in entry]
        self.served = self.model or next(iter(names), "")
        if self.served not in names:
            told = ", ".join(names) or "nothing"
            raise self.server.fault("not_served", f"{self.model or 'no model'}: {self.url} serves ", told)

    def close(self) -> None:
        """Close the connections."""
        if hasattr(self, "server"):
            self.server.close()

    def told(self) -> dict[str, object]:
        """The name of the model."""
        return {"model": self.server.hidden(self.served)}

    def counters(self) -> Counters | None:
        """Read the server's metrics, and return None if it exports none of the counters."""
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
        reply = self.answered(self.fields(request)).reply(self.tells.gives_ids)
        return replace(reply, text=None if reply.text is None else self.server.hidden(reply.text))

    def answered(self, body: Mapping[str, Any], again: bool = False) -> ArrivingAnswer:
        """Return what a stream said; ``again`` asks once more, since servers close a connection after some requests."""
        if again:
            with suppress(EngineFault):
                return self.answered(body)
        answer = ArrivingAnswer()
        for event in self.server.events(self.path, body):
            try:
                self.read(event, answer)
            except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise self.server.fault("malformed", f"{self.path} sent ({error}): ", str(event.data)) from error
        return answer

    def fields(self, request: EngineRequest) -> dict[str, object]:
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
            **({"min_p": request.min_p} if request.min_p else {}),
            **penalty_fields(request.penalties, "repetition_penalty"),
            **({"ignore_eos": True} if request.ignore_eos else {}),
            **({"logprobs": request.top_logprobs} if request.top_logprobs else {}),
            **({"echo": True} if request.echo else {}),
            **self.body,
        }

    def tokenise(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text as the server reads it; empty if it does not tell them.

        Raises:
            EngineFault: the request failed.
        """
        request = EngineRequest(ids=(), text=text, max_tokens=1, top_logprobs=1, echo=True)
        return self.generate(request).prompt_ids or ()

    def score(
        self, ids: Sequence[int], output: Sequence[int], width: int, penalties: Penalties
    ) -> tuple[TokenRow, ...]:
        """Return the probabilities of each token of an output, by the server's reading of prompt and output.

        Args:
            width: most probable tokens that are asked for.
            penalties: of the request that made the output; the rows are those behind them if ``scores_penalised``.

        Raises:
            UsageError: the server does not score a given text. EngineFault: a request failed.
        """
        if penalties.repetition != 1:
            raise UsageError(
                f"a repetition penalty divides logits, and {self.url} scores in log-probabilities without their zero; "
                "audit presence and frequency penalties, or run `stride engine probe`, which compares"
            )
        text = (*ids, *output)
        request = EngineRequest(ids=text, text=None, max_tokens=1, top_logprobs=width, echo=True)
        rows = (self.generate(request).rows or ())[len(ids) : len(text)]
        if len(rows) < len(output) or not all(row.top for row in rows):
            raise UsageError(
                f"{self.url} does not score a given text: {sum(bool(row.top) for row in rows)} of {len(output)} tokens "
                "came with probabilities. It must take `echo` with `logprobs` as vLLM does, or be SGLang or llama.cpp. "
                "`stride engine check` needs no scoring"
            )
        return rows

    def prompt_of(self, request: EngineRequest) -> Sequence[int] | str:
        """Return the prompt as ids if the entry wants them and they are known, else as text."""
        if self.prompt == "ids" and request.ids:
            return list(request.ids)
        if request.text is None:
            raise EngineFault("refused", "the prompt is known as ids alone; use prompt: ids")
        return request.text

    def read(self, event: StreamEvent, answer: ArrivingAnswer) -> None:
        """Take over what one message says."""
        data = event.data
        answer.usage |= data.get("usage") or {}
        for choice in data.get("choices") or []:
            if choice.get("index", self.sample) != self.sample:
                continue
            ids = self.ids_of(choice)
            told = choice.get("logprobs") or {}
            probs = told.get("token_logprobs") or []
            answer.rows += rows_of(told)
            answer.prompt_ids = whole_list(choice.get("prompt_token_ids")) or answer.prompt_ids
            tops = told.get("top_logprobs") or [{}] * len(probs)
            scored = [p for p, top in zip(probs, tops, strict=True) if (p, top) != (None, None)]  # a text's first token
            answer.logprobs += [float("nan") if value is None else float(value) for value in scored]
            if choice.get("text") or ids:
                answer.text.append(str(choice.get("text") or ""))
                answer.tokens += ids or []
                answer.chunks.append(Chunk(event.arrived_ns, len(ids) if ids is not None else len(probs) or None))
            answer.finish = str(choice.get("finish_reason") or answer.finish)
        answer.acceptance = self.acceptance(data, answer) or answer.acceptance

    def ids_of(self, choice: Mapping[str, Any]) -> list[int] | None:
        """Return the ids of a message, or None if it tells none."""
        return None

    def acceptance(self, data: Mapping[str, Any], answer: ArrivingAnswer) -> AcceptanceCounts | None:
        """Return the acceptance that a message tells, or None."""
        return None
