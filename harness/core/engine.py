"""The contract of an engine: the served model, the requests and the responses.

An engine decodes in its own loop, in this process or behind a URL. It has requests but no steps. A value that an
engine does not report is None; it is never guessed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Self

from stridebench.harness.errors import StrideError

FAULTS = {
    "no_server": "nothing answers at the address",
    "server_died": "the server stopped answering in the middle of a request",
    "timeout": "no answer within the limit",
    "overloaded": "the server refused for load (429)",
    "server_error": "the server failed (5xx)",
    "refused": "the server refused or redirected the request (3xx, 4xx)",
    "not_served": "the server does not serve this model",
    "no_stream": "the server answers in one piece, and a stream was asked for",
    "cut_short": "the stream ended before its last message",
    "malformed": "the answer is not of the documented form",
    "not_a_number": "a log-probability or figure is NaN or infinite",
    "other_tokenizer": "the engine's tokens are not those of the backbone's tokenizer",
    "ends_early": "the output ends before its budget although the end of text was to be ignored",
    "too_long": "the output is longer than its budget",
    "seed_ignored": "the seed does not decide the output",
    "engine_error": "the engine raised an error",
}
"""Kinds of faults, and what each means. A row of a request holds the kind."""
GONE = frozenset({"no_server", "server_died"})
"""Faults after which the same request is made again by `--resume`."""


class EngineFault(StrideError):
    """A request failed, or an engine cannot be used.

    Args:
        kind: a key of ``FAULTS``.
        detail: the symptom, in words.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{FAULTS[kind]}: {detail}")
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class Tells:
    """What an engine can tell and do.

    Args:
        takes_ids: a prompt may be token ids; else it is sent as text.
        gives_ids: outputs come with token ids.
        arrival: what has a time of arrival: "token", "chunk" (of one token or several) or "nothing".
        acceptance: names of the fields of `AcceptanceCounts` that a speculative request comes with.
        counters: names of the server's counters that are read before and after.
        logprobs: log-probabilities of the output's tokens can be had.
        seed: how a seed is honoured: "yes", "no", or under which condition.
        concurrent: several requests may be under way at once.
    """

    takes_ids: bool
    gives_ids: bool
    arrival: str
    acceptance: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    logprobs: bool = False
    seed: str = "yes"
    concurrent: bool = True


@dataclass(frozen=True)
class Penalties:
    """Changes of the logits that a request asks for, before temperature and cuts.

    Args:
        presence: nats by which an id that stands in the output so far is lowered.
        frequency: nats for each time that it stands there.
        repetition: positive logits of ids in prompt and output are divided by it, negative ones multiplied; 1 for none.
        bias: nats that are added to the logit of an id.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def shift(self, token: int | None, count: int) -> float:
        """Return the nats that are added to a token which stands ``count`` times in the output, without repetition."""
        bias = 0.0 if token is None else self.bias.get(token, 0.0)
        return bias - self.presence * (count > 0) - self.frequency * count


@dataclass(frozen=True)
class EngineRequest:
    """One request.

    Args:
        ids: of the prompt; empty if it is known as text alone.
        text: of the prompt; None if it is known as ids alone.
        temperature: 0 is greedy.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
        penalties: changes of the logits.
        seed: of this request.
        max_tokens: the budget of the output.
        ignore_eos: the end of text is an ordinary token.
        top_logprobs: how many of the most probable tokens are asked for with each token of the output.
        echo: the answer begins with the prompt, so that the engine scores a given text.
    """

    ids: tuple[int, ...]
    text: str | None
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: Penalties = Penalties()
    seed: int = 0
    ignore_eos: bool = False
    top_logprobs: int = 0
    echo: bool = False


@dataclass(frozen=True)
class AcceptanceCounts:
    """Acceptance as an engine reports it.

    Args:
        draft_steps: target passes that verified at least one draft.
        drafted: drafted tokens.
        accepted: drafted tokens kept.
        histogram: entry i is the number of steps that kept i drafts, or None if unknown.
        per_position: entry i is the number of steps that kept a draft at position i, or None if unknown.
        target_passes: all passes of the target, or None if unknown.
        told_length: the mean acceptance length that the engine reports.
        told_rate: the acceptance rate that the engine reports.
    """

    draft_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: tuple[int, ...] | None = None
    per_position: tuple[int, ...] | None = None
    target_passes: int | None = None
    told_length: float | None = None
    told_rate: float | None = None


@dataclass(frozen=True)
class Chunk:
    """A part of an output as it arrived.

    Args:
        arrived_ns: on the clock of `time.perf_counter_ns`.
        tokens: its number of tokens, or None if unknown.
    """

    arrived_ns: int
    tokens: int | None = None


@dataclass(frozen=True)
class TokenRow:
    """The probabilities that an engine sends with one token of an output.

    Args:
        token: the token, by its id or text.
        top: natural log-probabilities of the most probable tokens by the same names, before temperature and cuts. The
            token may stand there as well if it is not one of them. Empty if the engine sends none.
    """

    token: str
    top: Mapping[str, float]


@dataclass(frozen=True)
class Reply:
    """The response to one request.

    Args:
        tokens: ids of the output, or None if unknown.
        text: of the output, or None if unknown.
        chunks: in the order of their arrival; empty if not reported.
        output_tokens: number of tokens of the output, or None if unknown.
        prompt_tokens: number of tokens that the engine read, or None if unknown.
        finish: why it ended, in the engine's word; "" if it does not say.
        logprobs: log p of each token (natural), or None if unknown.
        acceptance: counts of kept drafts, or None if unknown.
        rows: probabilities at each token, or None if they were not asked for, or not sent.
        prompt_ids: ids of the prompt as the engine read it, or None if unknown.
    """

    tokens: tuple[int, ...] | None = None
    text: str | None = None
    chunks: tuple[Chunk, ...] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish: str = ""
    logprobs: tuple[float, ...] | None = None
    acceptance: AcceptanceCounts | None = None
    rows: tuple[TokenRow, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None

    @property
    def whole_rows(self) -> tuple[TokenRow, ...]:
        """Return the rows if there is one for each token of the output, else none of them."""
        return self.rows if self.rows is not None and len(self.rows) == self.output_tokens else ()


@dataclass(frozen=True)
class Counters:
    """Counters of a server at one moment, or their growth between two.

    Args:
        values: by the name of a request's column: output_tokens, draft_steps, drafted, accepted.
        per_position: accepted drafts by position, from 0.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    per_position: Mapping[int, float] = field(default_factory=dict)

    def since(self, before: Counters) -> Counters:
        """Return the growth since an earlier moment. A counter that is not there before started at 0."""
        values = {name: value - before.values.get(name, 0.0) for name, value in self.values.items()}
        places = {place: value - before.per_position.get(place, 0.0) for place, value in self.per_position.items()}
        return Counters(values, places)

    @property
    def backwards(self) -> bool:
        """Whether a counter fell, which happens when a server was started again."""
        return any(value < 0 for value in (*self.values.values(), *self.per_position.values()))


@dataclass(frozen=True)
class EngineWeights:
    """The place of the backbone's weights, for engines that load them.

    Args:
        folder: in the format of transformers, or None if this machine has none.
        gguf: gives the GGUF file that they were read from, which may download it, or None if there is none.
    """

    folder: str | None = None
    gguf: Callable[[], str | None] = field(default=lambda: None)


class Engine(ABC):
    """An engine. A concrete one is a dataclass whose fields are its options in a suite's entry.

    ``open`` is called before the first request and ``close`` after the last; requests may come from several threads
    where ``tells.concurrent``.
    """

    tells: ClassVar[Tells]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports and stridebench does not require. If one is missing, its cells are skipped."""
    reads_gguf: ClassVar[bool] = False
    """Whether it loads the backbone's GGUF file. Its cells are skipped if there is none and no ``model`` is named."""

    @abstractmethod
    def open(self, weights: EngineWeights) -> None:
        """Load the model, or find the server.

        Args:
            weights: of the backbone, for an engine whose entry names no model.

        Raises:
            EngineFault: it cannot be used.
        """

    @abstractmethod
    def generate(self, request: EngineRequest) -> Reply:
        """Decode one prompt.

        Raises:
            EngineFault: the request failed.
        """

    def close(self) -> None:
        """Free the resources that ``open`` took."""
        return

    def counters(self) -> Counters | None:
        """Return the server's current counters, or None if it has none."""
        return None

    def told(self) -> Mapping[str, Any]:
        """Return its description of itself once it is open: versions, the model's name."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def whole(value: Any) -> int | None:
    """Return a number of an answer as a whole number, or None if there is none.

    Raises:
        EngineFault: it is something else.
    """
    if value is None:
        return None
    number = finite(value)
    if number != int(number or 0):
        raise EngineFault("malformed", f"found {value!r:.60} where a whole number belongs")
    return int(value)


def whole_list(values: Any) -> tuple[int, ...] | None:
    """Return a list of whole numbers, or None if there is none.

    Raises:
        EngineFault: it is something else.
    """
    if values is None:
        return None
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise EngineFault("malformed", f"found {values!r:.60} where a list of whole numbers belongs")
    numbers = tuple(whole(value) for value in values)
    return tuple(number or 0 for number in numbers)


def finite(value: Any) -> float | None:
    """Return a number of an answer, or None if there is none.

    Raises:
        EngineFault: it is NaN, infinite, or not a number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EngineFault("malformed", f"found {value!r:.60} where a number belongs")
    if not math.isfinite(value):
        raise EngineFault("not_a_number", f"found {value!r:.60} where a number belongs")
    return float(value)
