"""Audits a server by its own scoring: its outputs are sent back, and it says how probable each token was.

At T > 0 its tokens are bet against by these probabilities, behind the penalties and cuts of the request. At T = 0 each
token must be the most probable one, or as good as that. Weights, kernels and quantisation drop out, and what remains is
the sampler. The scored rows come from a prefill without drafts, so they also tell whether the log-probabilities that
were sent with the output are right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stridebench.harness.audit.of_rows import below_best, bets_on_rows, width_of
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.engine import EngineFault, EngineWeights, Penalties, TokenRow
from stridebench.harness.core.task import Prompt, Sampling
from stridebench.harness.engines.check_verdict import ROUNDING, Decoded
from stridebench.harness.engines.checking import TOP, RowsEngine, decode
from stridebench.harness.engines.openai import OpenAI
from stridebench.harness.engines.serving.verdict import NEAR_TIE, stored_audit, word
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.record.entries import StoredVerdict

CODES = {
    **{"not refuted": 0, "broken": 1, "refuted": 1, "other weights or arithmetic": 1},
    **{"best tokens": 0, "near ties": 0, "differs": 1},
}
"""Exit codes of verdicts; those of all others are 4."""
DECODING = 0.6
"""Share of the time for decoding; scoring needs the rest."""


@dataclass(frozen=True)
class SentLogprobs:
    """The log-probabilities that were sent with an output, held against the scored ones.

    Args:
        tokens: that both give.
        missing: tokens whose probability was not sent.
        worst: the largest difference of the probability of a token; None without tokens.
        where: prompt, token, and both values of the worst.
        heated: they are those behind the temperature of the request, and the scored ones are the model's.
    """

    tokens: int
    missing: int = 0
    worst: float | None = None
    where: str = ""
    heated: bool = False

    @property
    def right(self) -> bool:
        """Whether no difference is beyond rounding."""
        return self.worst is None or self.worst <= ROUNDING


@dataclass(frozen=True)
class GreedyTokens:
    """The tokens of a decode at T = 0, held against the most probable ones of the scored rows.

    Args:
        tokens: of all outputs.
        lower: those that are not the most probable token.
        largest: nats by which one lies below the most probable token at most.
        where: prompt and token of the largest.
    """

    tokens: int
    lower: int
    largest: float
    where: str

    @property
    def verdict(self) -> str:
        """Return whether all are the most probable tokens, or differ from them at near ties alone."""
        return "differs" if self.largest > NEAR_TIE else "near ties" if self.lower else "best tokens"


@dataclass(frozen=True)
class ScoredServer:
    """The audit of one server by its own scoring: bets at T > 0, best tokens at T = 0."""

    url: str
    prompts: int
    failed: int
    audit: Audit | None
    greedy: GreedyTokens | None
    sent: SentLogprobs | None

    @property
    def verdict(self) -> str:
        """Return the verdict of its tokens alone."""
        return self.audit.verdict if self.audit else self.greedy.verdict if self.greedy else ""


@dataclass(frozen=True)
class ServerAudit:
    """The audit of a server, and of its plain decode if there is one."""

    verdict: str
    own: ScoredServer
    plain: ScoredServer | None

    @property
    def exit_code(self) -> int:
        """Return 0 if it is not refuted, 1 if it is, 4 if nothing can be said."""
        return CODES.get(self.verdict, 4)


def audit_servers(
    uses: Mapping[str, EngineUse],
    task: TaskUse,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    tokens: int,
    seconds: float,
    penalties: Penalties | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ServerAudit:
    """Decode prompts on the servers by turns, let each score its outputs, and judge its tokens.

    Args:
        uses: the server as "speculative", and its plain decode, if there is one, as "plain".
        sampling: of the requests.
        tokens: of each output at most.
        seconds: after which nothing more is begun.
        penalties: of the requests.

    Raises:
        EngineFault: a server cannot be used. UsageError: it cannot score a text.
    """
    engines: dict[str, RowsEngine] = {}
    begun = clock()
    try:
        for role, use in uses.items():
            engines[role] = RowsEngine(use.make(), penalties)
            engines[role].open(EngineWeights())
        cells = {
            role: EngineCell(use, "", "", task, sampling, tokens, ignore_eos=False, seed=0, role=role)
            for role, use in uses.items()
        }
        decoded = decode(engines, cells, prompts, begun + DECODING * seconds, clock)
        scored = {
            role: _scored(engines[role], one, penalties or Penalties(), len(uses), lambda: clock() >= begun + seconds)
            for role, one in decoded.items()
        }
    finally:
        for engine in engines.values():
            engine.close()
    own, plain = scored["speculative"], scored.get("plain")
    if own.greedy is not None:
        both = plain is not None and plain.verdict == own.verdict == "differs"
        return ServerAudit("other arithmetic" if both else own.verdict, own, plain)
    facts = StoredVerdict(audit=None if own.audit is None else stored_audit(own.audit))
    if plain is not None and plain.audit is not None:
        facts = facts.merged(StoredVerdict(plain_audit=stored_audit(plain.audit)))
    return ServerAudit(word(cells["speculative"], facts), own, plain)


def _scored(
    asked: RowsEngine, decoded: Decoded, penalties: Penalties, servers: int, over: Callable[[], bool]
) -> ScoredServer:
    """Let a server score its outputs, at least one; the time decides how many."""
    url, engine = str(decoded.cell.use.options["url"]), asked.engine
    assert isinstance(engine, OpenAI)  # only servers are asked
    rows: dict[str, tuple[TokenRow, ...]] = {}
    texts = {prompt.id: prompt.text for prompt in decoded.cell.task.task.prompts()}
    for row in decoded.requests:
        if row.status != "ok" or (rows and over()):
            continue
        ids = decoded.prompt_ids.get(row.prompt) or engine.tokenise(str(texts[row.prompt]))
        if ids and not row.tokens and any(one.tokens for one in decoded.requests):
            continue  # its ids are not known, and it counts as failed
        if not ids or not row.tokens:
            raise UsageError(
                f"{url} sends no token ids of prompts and outputs, without which it cannot score them; "
                "`stride engine check` needs none"
            )
        rows[row.prompt] = engine.score(ids, row.tokens, TOP, penalties)
    if not rows:
        first = next((row.error for row in decoded.requests if row.error), "no prompt was answered")
        raise EngineFault("refused", f"{url}: no output to score: {first}")
    # rows that hold the penalties already are not those that were sent with the output
    behind = engine.scores_penalised and penalties != Penalties()
    sent = None if behind else _compared(decoded.rows, rows, decoded.cell.sampling.temperature)
    penalties = Penalties() if behind else penalties
    width, sampling = width_of(list(rows.values())), decoded.cell.sampling
    if not width:
        raise UsageError(
            f"{url} scores each token without the most probable ones, so nothing can be bet on them; let it send "
            f"the {TOP} most probable tokens (`logprobs`)"
        )
    result, greedy = None, None
    if sampling.temperature:
        result = audit([bets_on_rows(one, width, sampling, penalties) for one in rows.values()], servers)
    else:
        greedy = _greedy({prompt: below_best(one, width, penalties) for prompt, one in rows.items()})
    failed = sum(row.status != "ok" or not row.tokens for row in decoded.requests)
    return ScoredServer(url, len(rows), failed, result, greedy, sent)


def _greedy(below: Mapping[str, Sequence[float]]) -> GreedyTokens:
    """Return how far the tokens of each output lie below the most probable ones."""
    places = [(by, f"{prompt}, token {place + 1}") for prompt, one in below.items() for place, by in enumerate(one)]
    largest, where = max(places, key=lambda place: place[0])
    return GreedyTokens(len(places), sum(by > 0 for by, _ in places), largest, where)


def _compared(
    sent: Mapping[str, tuple[TokenRow, ...]], scored: Mapping[str, tuple[TokenRow, ...]], temperature: float
) -> SentLogprobs:
    """Compare what a server sent with its outputs and what it says of them later, where both name the token."""
    differences: list[tuple[float, str]] = []
    missing, gaps = 0, list[tuple[float, float]]()
    for prompt, rows in scored.items():
        missing += len(rows) - sum(bool(row.top) for row in sent.get(prompt, ())[: len(rows)])
        for place, (one, two) in enumerate(zip(sent.get(prompt, ()), rows, strict=False)):
            if one.token in one.top and two.token in two.top:
                a, b = math.exp(one.top[one.token]), math.exp(two.top[two.token])
                differences.append((abs(a - b), f"{prompt}, token {place + 1}: {a:.2f} sent, {b:.2f} scored"))
            first, *others = [name for name in one.top if name in two.top] or [""]
            gaps += [(one.top[first] - one.top[name], two.top[first] - two.top[name]) for name in others]
    if not differences:
        return SentLogprobs(0, missing)
    worst, where = max(differences)
    heated = False
    if temperature not in (0, 1) and gaps:  # what divides all logits moves every gap between two of them alike
        as_sent, behind = (median(abs(a - b / heat) for a, b in gaps) for heat in (1.0, temperature))
        heated = worst > ROUNDING and behind < as_sent / 4
    return SentLogprobs(len(differences), missing, worst, where, heated)
