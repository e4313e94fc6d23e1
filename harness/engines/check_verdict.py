"""The verdicts of `stride engine check` and `probe`: a server's tokens and probabilities against its plain decode's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from stridebench.harness.audit.of_rows import bets_on_rows, distance, top_of, width_of
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.core.engine import (
    TokenRow,
)
from stridebench.harness.engines.serving.verdict import (
    NEAR_TIE,
    broken_identities,
    largest,
    stored_audit,
    visible_share,
    word,
)
from stridebench.harness.errors import number_of
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.record import stats
from stridebench.harness.record.entries import StoredDifference, StoredVerdict
from stridebench.harness.record.requests import Request, counted, measures, table

ROUNDING = math.tanh(NEAR_TIE / 2)
"""Total variation of two rows whose logits differ by at most ``NEAR_TIE`` is at most this."""
VISIBLE = 0.2
"""A bias of this size, in total variation a token, would be seen if a server is called safe."""

OUTCOMES = {"safe": 0, "unsafe": 1, "not shown": 4}
"""The outcomes, with their exit codes."""
SAFE = ("same tokens", "near ties", "not refuted")
UNSAFE = ("differs", "broken", "refuted")
SKIPPED = "skipped"  # a probe that does not apply to a server says nothing against it
ENDED = "ended"  # the server answers nothing since a probe


@dataclass(frozen=True)
class CheckedCell:
    """The figures of one server at one temperature; see `harness.record.requests` for their definitions."""

    server: str
    temperature: float
    prompts: int
    failed: int
    tokens_per_second: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    acceptance: float | None
    length_per_draft: float | None
    length_per_pass: float | None
    times: float | None = None
    times_low: float | None = None
    times_high: float | None = None
    times_n: int | None = None
    verdict: str = ""

    @property
    def gain(self) -> str:
        """Return whether it pays, in words."""
        if self.times is None:
            return ""
        numbers = f"{self.times:.2f}"
        if self.times_low is None or self.times_high is None:
            counted = f"{numbers}, {number_of(self.times_n or 0, 'prompt')}"
            return f"at T = {self.temperature:g} whether it pays is not shown ({counted})"
        pays, costs = self.times_low > 1, self.times_high < 1
        said = "it pays" if pays else "it costs time" if costs else "no gain is shown"
        return f"{said} at T = {self.temperature:g} ({numbers} [{self.times_low:.2f}, {self.times_high:.2f}])"


@dataclass(frozen=True)
class CheckedServer:
    """The result of a check.

    Args:
        outcome: a key of ``OUTCOMES``.
        reasons: of the outcome, one a line.
        cells: the server and its plain decode, at each temperature.
        notes: further findings.
    """

    outcome: str
    reasons: tuple[str, ...]
    cells: tuple[CheckedCell, ...]
    notes: tuple[str, ...]

    @property
    def headline(self) -> str:
        """Return the outcome and whether it pays, in one line."""
        safety = "not shown to be safe" if self.outcome == "not shown" else self.outcome
        gains = "; ".join(cell.gain for cell in self.cells if cell.gain)
        return f"{safety}: {gains or 'without its plain decode (--plain) nothing shows whether it pays'}"


@dataclass(frozen=True)
class ProbeRow:
    """The result of one probe; its verdict is one of `stride engine check`, "ended", "not shown" or "skipped"."""

    probe: str
    verdict: str
    evidence: str
    seconds: float


@dataclass(frozen=True)
class ProbedServer:
    """The rows of all probes."""

    url: str
    rows: tuple[ProbeRow, ...]

    @property
    def outcome(self) -> str:
        """Return unsafe if a probe is or ended the server, not shown if a comparison is missing, else safe."""
        words = {row.verdict for row in self.rows}
        if words & {*UNSAFE, ENDED}:
            return "unsafe"
        return "safe" if words <= {*SAFE, SKIPPED} and words != {SKIPPED} else "not shown"


@dataclass
class Decoded:
    """The answers of one server at one temperature.

    Args:
        cell: the setting, as a run of engines has it.
        requests: one a prompt.
        rows: the probabilities of each output, by prompt.
        prompt_ids: of each prompt, as the server read it; empty if it does not tell them.
        growth: of the server's counters.
        problem: why their growth is not known; "" if it is, or the server has none.
    """

    cell: EngineCell
    requests: list[Request] = field(default_factory=list)
    rows: dict[str, tuple[TokenRow, ...]] = field(default_factory=dict)
    prompt_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def whole(self) -> dict[str, tuple[TokenRow, ...]]:
        """Return the rows of each output that has one for every token; in others the places of tokens are not known."""
        counts = {one.prompt: one.output_tokens for one in self.requests}
        return {key: rows for key, rows in self.rows.items() if rows and len(rows) == counts.get(key, len(rows))}

    @property
    def lacking(self) -> int:
        """Tokens that came without probabilities."""
        short = sum(max(0, (one.output_tokens or 0) - len(self.rows.get(one.prompt, ()))) for one in self.requests)
        return short + sum(not row.top for rows in self.rows.values() for row in rows)

    def audit(self, servers: int) -> Audit | None:
        """Return the bets against the tokens by the server's own probabilities, or None if they do not suffice."""
        outputs = [rows for rows in self.rows.values() if rows]
        width = width_of(outputs)
        if not width or self.lacking:
            return None
        return audit([bets_on_rows(rows, width) for rows in outputs], servers)


@dataclass(frozen=True)
class TemperatureJudgement:
    """What the answers at one temperature show: the word of the verdict, its evidence, and what is in doubt."""

    verdict: str
    evidence: str
    doubts: tuple[str, ...]


def judged(decoded: Mapping[float, Mapping[str, Decoded]]) -> CheckedServer:
    """Judge the answers of one server, or of two, at each temperature."""
    judgements = {temperature: _judged(of_role) for temperature, of_role in decoded.items()}
    words = {one.verdict for one in judgements.values()}
    doubts = [doubt for one in judgements.values() for doubt in one.doubts]
    if not all("plain" in of_role for of_role in decoded.values()):
        doubts.append("without its plain decode (--plain) nothing shows that the server's probabilities are right")
    safe = words <= set(SAFE) and not doubts
    outcome = "unsafe" if words & set(UNSAFE) else "safe" if safe else "not shown"
    reasons = [f"T = {temperature:g}: {one.verdict}: {one.evidence}" for temperature, one in judgements.items()]
    cells = [cell for t, of_role in decoded.items() for cell in _cells(of_role, judgements[t].verdict)]
    notes = [note for of_role in decoded.values() for one in of_role.values() for note in _notes(one)]
    return CheckedServer(outcome, (*reasons, *doubts), tuple(cells), tuple(dict.fromkeys(notes)))


def _judged(of_role: Mapping[str, Decoded]) -> TemperatureJudgement:
    own, plain = of_role["speculative"], of_role.get("plain")
    at, greedy = f"T = {own.cell.sampling.temperature:g}", own.cell.sampling.temperature == 0
    doubts = []
    if failed := sum(one.status != "ok" for one in own.requests):
        doubts.append(f"{at}: {failed} of {len(own.requests)} requests failed")
    if len(own.rows) < stats.FEWEST:
        answered = number_of(len(own.rows), "answer")
        doubts.append(f"{at}: {answered} came in the time, and {stats.FEWEST} are needed")
    if _drafted(own) == 0:
        doubts.append(f"{at}: nothing was drafted, so this was a plain decode")
    facts, evidence = compared(own, plain) if plain is not None else (StoredVerdict(), "nothing to compare with")
    facts, said = (facts, "") if greedy else _audited(own, plain, facts)
    verdict = word(own.cell, facts, len(own.rows))
    if plain is not None and facts.pairs < len(own.rows) and (greedy or verdict == "same tokens"):
        part = f"{facts.pairs} of {number_of(len(own.rows), 'output')} could be compared"
        doubts.append(f"{at}: {part}: others were not answered by both servers with probabilities of every token")
    if not greedy:
        evidence = evidence if verdict == "same tokens" else said
        seen = facts.audit.visible_tv if facts.audit is not None and verdict != "same tokens" else None
        if seen is not None and seen > VISIBLE:
            doubts.append(f"{at}: too few tokens to see a bias below {VISIBLE:g}: send more prompts, or longer outputs")
        return TemperatureJudgement(verdict, evidence, tuple(doubts))
    first, later = _departures(own, plain) if plain is not None else (0.0, 0.0)
    far = f"their probabilities differ by a total variation of {{:.2f}} (rounding: {ROUNDING:.2f} at most)"
    if first > ROUNDING:
        verdict = "other arithmetic" if verdict == "differs" else verdict
        doubts.append(f"{at}: the servers differ before anything is drafted: at first tokens {far.format(first)}")
    elif later > ROUNDING:
        doubts.append(f"{at}: after the same tokens {far.format(later)}, and at first tokens by {first:.2f}")
    return TemperatureJudgement(verdict, evidence, tuple(doubts))


def _drafted(one: Decoded) -> float | None:
    """Return the drafted tokens, or None if the server does not tell them."""
    told = [row.drafted for row in one.requests if row.drafted is not None]
    return sum(told) if told else one.growth.get("drafted")


def compared(own: Decoded, plain: Decoded) -> tuple[StoredVerdict, str]:
    """Compare the tokens of two servers: how many outputs are the same, and where the others differ first."""
    there = plain.whole
    keys = [prompt for prompt in own.whole if prompt in there]
    sides = {key: (_tokens(own, key), _tokens(plain, key)) for key in keys}
    other = [key for key, (one, two) in sides.items() if one != two]
    if not keys:
        return StoredVerdict(), "no output of both servers came with probabilities of every token"
    facts = StoredVerdict(pairs=len(keys), same=1 - len(other) / len(keys), visible_share=visible_share(len(keys)))
    if not other:
        seen = f"a change of {facts.visible_share:.0%} of them would have been seen in 9 of 10 checks"
        return facts, f"all {len(keys)} outputs are those of the plain decode; {seen}"
    differences = [_difference(plain, key, *sides[key]) for key in other]
    known = StoredVerdict(differences=[one for one in differences if one.margin is not None])
    count = f"{len(other)} of {len(keys)} outputs differ"
    if len(known.differences or ()) < len(other) and largest(known) <= NEAR_TIE:
        return facts, f"{count}, and some only by their end"
    worst = max(known.differences or (), key=lambda one: abs(one.margin or 0.0))
    apart = f"where the plain decode's two tokens are up to {largest(known):.2f} nats apart"
    return facts.merged(known), f"{count}, {apart} ({worst.prompt}, token {worst.at + 1})"


def _tokens(one: Decoded, prompt: str) -> list[str]:
    return [row.token for row in one.rows[prompt]]


def _difference(plain: Decoded, prompt: str, one: Sequence[str], other: Sequence[str]) -> StoredDifference:
    """Return the first difference of an output and the plain one, and how far the plain server's two tokens are apart.

    The margin is at least the true one if the server does not send the other token; None if an output only ends.
    """
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return StoredDifference(prompt=prompt, at=min(len(one), len(other)), margin=None)
    top = plain.rows[prompt][at].top
    margin = max(top.values()) - top.get(one[at], min(top.values())) if top else None
    return StoredDifference(prompt=prompt, at=at, margin=margin)


def _departures(own: Decoded, plain: Decoded) -> tuple[float, float]:
    """Return by how much the servers' probabilities differ at most after the same tokens: first tokens, later ones.

    Nothing is drafted yet at the first token of an output, so a difference there is one of weights or arithmetic.
    """
    width = min(width_of(list(one.whole.values())) for one in (own, plain))
    first, later = [0.0], [0.0]
    for prompt in own.whole.keys() & plain.whole.keys() if width else ():
        for place, (one, two) in enumerate(zip(own.rows[prompt], plain.rows[prompt], strict=False)):
            (later if place else first).append(distance(top_of(one, width), top_of(two, width)))
            if one.token != two.token:
                break
    return max(first), max(later)


def _audited(own: Decoded, plain: Decoded | None, facts: StoredVerdict) -> tuple[StoredVerdict, str]:
    """Bet against the tokens of both servers by their own probabilities."""
    servers = 1 if plain is None else 2
    result, of_plain = own.audit(servers), None if plain is None else plain.audit(servers)
    if result is None:
        if not own.lacking:
            return facts, "the server sends the probability of the drawn token alone, and no bet on it is fair"
        return facts, f"{own.lacking} tokens came without probabilities, and a choice of tokens proves nothing"
    facts = facts.merged(StoredVerdict(audit=stored_audit(result)))
    said = audit_words(result)
    if of_plain is not None:
        facts = facts.merged(StoredVerdict(plain_audit=stored_audit(of_plain)))
        said += f"; the plain decode: e = {_e_value(of_plain)}" if result.verdict == "refuted" else ""
    return facts, said


def audit_words(result: Audit) -> str:
    """Return the e-value, and the best bet or what would have been seen."""
    text = f"e = {_e_value(result)} (refuted from {result.threshold:g}) after {result.tokens} tokens"
    if result.verdict == "refuted":
        return f"{text}, by the server's own probabilities; best bet: {result.best}"
    if result.visible_tv is None:
        return f"{text}, too few to see a bias"
    return f"{text}; a bias of {result.visible_tv:.2g} in total variation a token would have been seen"


def _e_value(result: Audit) -> str:
    small = abs(result.log_e) < math.log(1e4)
    return f"{math.exp(result.log_e):.2g}" if small else f"1e{result.log_e / math.log(10):+.0f}"


def _cells(of_role: Mapping[str, Decoded], verdict: str) -> Iterator[CheckedCell]:
    """Yield the figures of each server; the speed-up is paired by prompt."""
    frames = {role: table(one.requests).to_pandas(use_threads=False) for role, one in of_role.items()}
    each = {role: _seconds_a_token(frame) for role, frame in frames.items()}
    for role, one in of_role.items():
        figures = measures(frames[role], one.growth, {})
        cell = CheckedCell(
            *(one.cell.use.label, one.cell.sampling.temperature, len(one.requests)),
            failed=sum(row.status != "ok" for row in one.requests),
            tokens_per_second=figures["tokens_per_second"],
            ttft_ms=figures["ttft_ms_p50"],
            tpot_ms=figures["tpot_ms_p50"],
            acceptance=figures["acceptance"],
            length_per_draft=figures["length_per_draft_pooled"],
            length_per_pass=figures["length_per_pass_pooled"],
        )
        if role == "speculative":
            cell = replace(cell, verdict=verdict)
            if "plain" in each:
                both = pd.concat([each["plain"].rename("plain"), each[role].rename("own")], axis=1, join="inner")
                if (times := stats.ratio(both.dropna(), "plain", "own")) is not None:
                    cell = replace(cell, times=times.estimate, times_n=times.n)
                    cell = replace(cell, times_low=times.low, times_high=times.high)
        yield cell


def _seconds_a_token(frame: pd.DataFrame) -> pd.Series[float]:
    rows = counted(frame).set_index(["prompt", "repetition"])
    tokens = rows["output_tokens"].astype(float)
    return (rows["ended_ns"] - rows["sent_ns"]) / 1e9 / tokens.where(tokens > 0)


def _notes(one: Decoded) -> Iterator[str]:
    """Yield failures, and numbers of the server that contradict each other."""
    name = one.cell.use.label
    if one.problem:
        yield f"{name}: its counters tell no acceptance: {one.problem}"
    for fault, count in Counter(row.fault for row in one.requests if row.fault).items():
        first = next(row.error for row in one.requests if row.fault == fault)
        yield f"{name}: {count} x {fault}: {first}"
    yield from (f"{name}: {line}" for line in broken_identities(table(one.requests).to_pandas(use_threads=False)))
