"""Audits a server by its own scoring: its outputs at T > 0 are sent back, and it says how probable each token was.

Weights, kernels and quantisation drop out, and what remains is the sampler. The scored rows come from a prefill without
drafts, so they also tell whether the log-probabilities that were sent with the output are right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stridebench.harness.audit.of_rows import bets_on_rows, width_of
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.engine import EngineFault, EngineRequest, EngineWeights, TokenRow
from stridebench.harness.core.task import Prompt, Sampling
from stridebench.harness.engines.check_verdict import ROUNDING, Decoded
from stridebench.harness.engines.checking import RowsEngine, decode
from stridebench.harness.engines.serving.verdict import stored_audit, word
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.record.entries import StoredVerdict

CODES = {"not refuted": 0, "broken": 1, "refuted": 1, "other weights or arithmetic": 1}
"""Exit codes of verdicts; those of all others are 4."""
DECODING = 0.6
"""Share of the time for decoding; scoring needs the rest."""


@dataclass(frozen=True)
class SentLogprobs:
    """The log-probabilities that were sent with an output, held against the scored ones.

    Args:
        tokens: that both give.
        worst: the largest difference of the probability of a token; None without tokens.
        where: prompt, token, and both values of the worst.
    """

    tokens: int
    worst: float | None = None
    where: str = ""

    @property
    def right(self) -> bool:
        """Whether no difference is beyond rounding."""
        return self.worst is None or self.worst <= ROUNDING


@dataclass(frozen=True)
class ScoredServer:
    """The audit of one server by its own scoring."""

    url: str
    prompts: int
    failed: int
    audit: Audit
    sent: SentLogprobs


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
    clock: Callable[[], float] = time.monotonic,
) -> ServerAudit:
    """Decode prompts on the servers by turns, let each score its outputs, and bet against its tokens.

    Args:
        uses: the server as "speculative", and its plain decode, if there is one, as "plain".
        sampling: of the requests, at a temperature above 0.
        tokens: of each output at most.
        seconds: after which nothing more is begun.

    Raises:
        EngineFault: a server cannot be used. UsageError: it cannot score a text.
    """
    engines: dict[str, RowsEngine] = {}
    begun = clock()
    try:
        for role, use in uses.items():
            engines[role] = RowsEngine(use.make())
            engines[role].open(EngineWeights())
        cells = {
            role: EngineCell(use, "", "", task, sampling, tokens, ignore_eos=False, seed=0, role=role)
            for role, use in uses.items()
        }
        decoded = decode(engines, cells, prompts, begun + DECODING * seconds, clock)
        scored = {
            role: _scored(engines[role], one, len(uses), lambda: clock() >= begun + seconds)
            for role, one in decoded.items()
        }
    finally:
        for engine in engines.values():
            engine.close()
    own, plain = scored["speculative"], scored.get("plain")
    facts = StoredVerdict(audit=stored_audit(own.audit))
    if plain is not None:
        facts = facts.merged(StoredVerdict(plain_audit=stored_audit(plain.audit)))
    return ServerAudit(word(cells["speculative"], facts), own, plain)


def _scored(engine: RowsEngine, decoded: Decoded, servers: int, over: Callable[[], bool]) -> ScoredServer:
    """Let a server score its outputs, at least one; the time decides how many."""
    url = str(decoded.cell.use.options["url"])
    rows: dict[str, tuple[TokenRow, ...]] = {}
    for row in decoded.requests:
        if row.status != "ok" or (rows and over()):
            continue
        ids = decoded.prompt_ids.get(row.prompt)
        if not ids or not row.tokens:
            raise UsageError(
                f"{url} sends no token ids of prompts and outputs, without which it cannot score them; "
                "`stride engine check` needs none"
            )
        rows[row.prompt] = score(engine, url, ids, row.tokens)
    width = width_of(list(rows.values()))
    if not rows:
        first = next((row.error for row in decoded.requests if row.error), "no prompt was answered")
        raise EngineFault("refused", f"{url}: no output to score: {first}")
    result = audit([bets_on_rows(one, width, decoded.cell.sampling) for one in rows.values()], servers)
    failed = sum(row.status != "ok" for row in decoded.requests)
    return ScoredServer(url, len(rows), failed, result, _compared(decoded.rows, rows))


def score(engine: RowsEngine, url: str, ids: Sequence[int], output: Sequence[int]) -> tuple[TokenRow, ...]:
    """Return the probabilities of each token of an output, by the server's reading of prompt and output.

    Raises:
        UsageError: the server does not score a given text.
    """
    text = (*ids, *output)
    engine.generate(EngineRequest(ids=text, text=None, max_tokens=1, echo=True))
    rows = engine.rows[len(ids) : len(text)]
    if len(rows) < len(output) or not all(row.top for row in rows):
        raise UsageError(
            f"{url} does not score a given text: it sent probabilities of {sum(bool(row.top) for row in rows)} of "
            f"{len(output)} tokens. It must take `echo` with `logprobs`, as vLLM does; `stride engine check` needs "
            "neither"
        )
    return rows


def _compared(sent: Mapping[str, tuple[TokenRow, ...]], scored: Mapping[str, tuple[TokenRow, ...]]) -> SentLogprobs:
    """Compare what a server sent with its outputs and what it says of them later, where both name the token."""
    differences: list[tuple[float, str]] = []
    for prompt, rows in scored.items():
        for place, (one, two) in enumerate(zip(sent.get(prompt, ()), rows, strict=False)):
            if one.token in one.top and two.token in two.top:
                a, b = math.exp(one.top[one.token]), math.exp(two.top[two.token])
                differences.append((abs(a - b), f"{prompt}, token {place + 1}: {a:.2f} sent, {b:.2f} scored"))
    if not differences:
        return SentLogprobs(0)
    worst, where = max(differences)
    return SentLogprobs(len(differences), worst, where)
