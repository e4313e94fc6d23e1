"""Probes of a server with drafts: what a refused draft, a shared prefix or a late end leaves behind.

Each probe is a handful of short requests at T = 0 whose tokens are compared with the plain decode: that of a second
server, or of the same server asked for one token at a time, where no draft can be kept. Differences are judged as in
`stridebench.harness.engines.check_verdict`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from stridebench.harness.core.engine import Engine, EngineFault, EngineRequest, EngineWeights, Reply
from stridebench.harness.core.task import Sampling
from stridebench.harness.engines.check_verdict import SAFE, UNSAFE, Decoded, compared
from stridebench.harness.engines.checking import TOP
from stridebench.harness.engines.serving.verdict import word
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse

TOKENS = 16
"""Of an output."""
COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,"
CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n"
TOLD = "The cat sat on the mat. The dog sat on the rug. The cat sat on the mat. The dog sat"
AGES = "Write the ages of Ann (31) and Bob (25) as one JSON object.\n"
STOPS = ("openai", "vllm", "llama_cpp")
"""Engines whose requests take ``stop`` at the top level."""
JSON_ONLY: Mapping[str, Mapping[str, Any]] = {
    "openai": {"response_format": {"type": "json_object"}},
    "vllm": {"response_format": {"type": "json_object"}},
    "llama_cpp": {"json_schema": {}},
}
"""The fields of a request whose output must be JSON."""


@dataclass(frozen=True)
class ProbeRow:
    """The result of one probe; its verdict is one of `stride engine check`, or "not shown"."""

    probe: str
    verdict: str
    evidence: str
    seconds: float


@dataclass(frozen=True)
class ProbedServer:
    """The rows of all probes, and the outcome: safe, unsafe or not shown."""

    url: str
    rows: tuple[ProbeRow, ...]

    @property
    def outcome(self) -> str:
        """Return unsafe if a probe is, not shown if a comparison is missing, else safe."""
        words = {row.verdict for row in self.rows}
        if words & set(UNSAFE):
            return "unsafe"
        return "safe" if words <= set(SAFE) else "not shown"


@dataclass
class Asker:
    """Requests to a server, and its plain decode of prompts, each of which is made once.

    Args:
        use: the server's entry.
        plain: that of its plain decode, or None for one token at a time.

    Attributes:
        kept: plain decodes by prompt.
        engines: those that are open, by their entry and options.
    """

    use: EngineUse
    plain: EngineUse | None
    kept: dict[str, Reply] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)

    def ask(
        self, prompt: str | Sequence[int], tokens: int = TOKENS, use: EngineUse | None = None, **fields: Any
    ) -> Reply:
        """Return the answer to a prompt at T = 0, unless the temperature and the seed are among the fields.

        Raises:
            EngineFault: the request failed.
        """
        chosen = self.use if use is None else use
        sampled = {key: fields.pop(key) for key in ("temperature", "seed") if key in fields}
        options = {**chosen.options, "body": fields} if fields else chosen.options
        is_text = isinstance(prompt, str)
        engine = self._opened(replace(chosen, options={**options, "prompt": "text" if is_text else "ids"}))
        request = EngineRequest(
            ids=() if isinstance(prompt, str) else tuple(prompt),
            text=prompt if isinstance(prompt, str) else None,
            max_tokens=tokens,
            top_logprobs=TOP,
            **sampled,
        )
        return engine.generate(request)

    def _opened(self, use: EngineUse) -> Engine:
        key = f"{use.label} {use.options}"
        if key not in self.engines:
            self.engines[key] = use.make()
            self.engines[key].open(EngineWeights())
        return self.engines[key]

    def close(self) -> None:
        """Close all connections."""
        for engine in self.engines.values():
            engine.close()

    def plainly(self, prompt: str) -> Reply:
        """Return the plain decode of a prompt.

        Raises:
            UsageError: it takes token ids that the server does not send.
        """
        if prompt not in self.kept:
            self.kept[prompt] = self._one_by_one(prompt) if self.plain is None else self.ask(prompt, use=self.plain)
        return self.kept[prompt]

    def _one_by_one(self, prompt: str) -> Reply:
        reply = self.ask(prompt, 1)
        ids, tokens, rows = list(reply.prompt_ids or ()), list(reply.tokens or ()), list(reply.rows or ())
        if not ids or not tokens:
            raise UsageError(
                f"{self.use.options['url']} sends no token ids of prompts and outputs, so its plain decode cannot be "
                "asked for token by token; name a server of the same model without drafts with --plain"
            )
        while len(tokens) < TOKENS and reply.finish == "length":
            reply = self.ask([*ids, *tokens], 1)
            tokens += reply.tokens or ()
            rows += reply.rows or ()
        return replace(reply, tokens=tuple(tokens), rows=tuple(rows), output_tokens=len(tokens))

    def judged(self, answers: Mapping[str, tuple[Reply, Reply]]) -> tuple[str, str]:
        """Return the verdict and the evidence of answers and their plain decodes, by what tells them apart."""
        no_task: Any = None
        task = TaskUse("probe", no_task, None)
        cell = EngineCell(self.use, "", "", task, Sampling(0.0), TOKENS, ignore_eos=False, seed=0, role="speculative")
        own, plain = Decoded(cell), Decoded(replace(cell, role="plain"))
        for name, (reply, reference) in answers.items():
            own.rows[name], plain.rows[name] = reply.rows or (), reference.rows or ()
        if not all(own.rows.values()) or not all(plain.rows.values()):
            return "not shown", "a server sends no probabilities, by which near ties are known"
        facts, evidence = compared(own, plain)
        return word(own.cell, facts), evidence


def _repeats(asker: Asker) -> tuple[str, str]:
    """Texts that repeat themselves and then go on: drafts that are kept whole, in part, and not at all."""
    return asker.judged({name: (asker.ask(name), asker.plainly(name)) for name in (COUNTED, CODE, TOLD)})


def _edges(asker: Asker) -> tuple[str, str]:
    """Prompts of ever more tokens, so that a draft is refused at each place of a block of 16."""
    prompts = [" a" * number + "\n" + COUNTED for number in (3, 8, 13)]
    return asker.judged({one: (asker.ask(one), asker.plainly(one)) for one in prompts})


def _prefixes(asker: Asker) -> tuple[str, str]:
    """A, then B with the same beginning, then A again, whose blocks may be taken over."""
    first, second = TOLD + " on", TOLD + " under the table, and then"
    answers = {name: asker.ask(prompt) for name, prompt in (("A", first), ("B", second), ("A again", first))}
    plain = {"A": first, "B": second, "A again": first}
    return asker.judged({name: (reply, asker.plainly(plain[name])) for name, reply in answers.items()})


def _together(asker: Asker) -> tuple[str, str]:
    """Requests of different lengths at once, each as when it is alone."""
    prompts = [COUNTED, CODE, TOLD, " a" * 8 + "\n" + COUNTED, TOLD + " on"]
    alone = {prompt: asker.plainly(prompt) for prompt in prompts}
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(asker.ask, prompts))
    return asker.judged(dict(zip(prompts, zip(answers, alone.values(), strict=True), strict=True)))


def _budgets(asker: Asker) -> tuple[str, str]:
    """Budgets of one, two and three tokens, which end inside a draft."""
    answers = {}
    for budget in (1, 2, 3):
        reply, plain = asker.ask(COUNTED, budget), asker.plainly(COUNTED)
        if reply.output_tokens != budget:
            return "differs", f"max_tokens {budget} gave {reply.output_tokens} tokens"
        answers[f"max_tokens {budget}"] = reply, replace(plain, rows=(plain.rows or ())[:budget])
    return asker.judged(answers)


def _stops(asker: Asker) -> tuple[str, str]:
    """A stop string that comes up in the middle of a draft: nothing behind it may be sent."""
    if asker.use.name not in STOPS:
        return "not shown", f"requests of {asker.use.name} are not known to take stop strings"
    whole = asker.ask(COUNTED).text or ""
    stop = whole[len(whole) // 2 :][:3]
    if not stop:
        return "not shown", "the server sends no text"
    sent, expected = asker.ask(COUNTED, stop=[stop]).text or "", whole[: whole.index(stop)]
    if sent == expected:
        return "same tokens", f"the output ends at {stop!r}"
    return "differs", f"with the stop string {stop!r} it sent {sent[-20:]!r} instead of {expected[-20:]!r}"


def _json(asker: Asker) -> tuple[str, str]:
    """An output that a grammar holds to JSON."""
    if asker.use.name not in JSON_ONLY:
        return "not shown", f"how requests of {asker.use.name} ask for JSON is not known"
    reply = asker.ask(AGES, 3 * TOKENS, **JSON_ONLY[asker.use.name])
    text = (reply.text or "").strip()
    if begins_json(text, whole=reply.finish != "length"):
        return "same tokens", f"{text[:30]!r} is {'JSON' if reply.finish != 'length' else 'the beginning of JSON'}"
    return "differs", f"{text[:60]!r} is not JSON ({reply.finish})"


def _seeds(asker: Asker) -> tuple[str, str]:
    """At T = 1 equal seeds give equal outputs, and different ones do not."""
    outputs = [asker.ask(CODE, temperature=1.0, seed=seed).rows for seed in (1, 1, 2, 3)]
    first, again, *others = [[row.token for row in rows or ()] for rows in outputs]
    if not first:
        return "not shown", "the server sends no probabilities, by whose names tokens are compared"
    if all(other == first for other in others):
        return "differs", "three seeds gave one output at T = 1"
    if first != again:
        return "not shown", "one seed gave two outputs at T = 1: the server ignores it, or rounds by its batch"
    return "same tokens", "equal seeds gave equal outputs, and different seeds different ones"


PROBES: Mapping[str, Callable[[Asker], tuple[str, str]]] = {
    "an empty draft after an accepted one": _repeats,
    "edges of blocks": _edges,
    "A, B, A with one prefix": _prefixes,
    "several at once": _together,
    "max_tokens 1 to 3": _budgets,
    "a stop string in a draft": _stops,
    "JSON": _json,
    "seeds": _seeds,
}


def begins_json(text: str, whole: bool) -> bool:
    """Return whether a text is JSON, or the beginning of it if the output was cut."""
    try:
        json.loads(text)
    except ValueError as error:
        rest = text[error.pos :] if isinstance(error, json.JSONDecodeError) else ""
        cut_word = any(known.startswith(rest) for known in ("true", "false", "null", "-"))
        return not whole and ("Unterminated" in str(error) or cut_word)
    return True


def probe(use: EngineUse, plain: EngineUse | None) -> Iterator[ProbeRow]:
    """Run the probes one after the other.

    Args:
        plain: a server of the same model without drafts, or None for requests of one token.

    Raises:
        UsageError: there is no plain decode to compare with. EngineFault: the server does not answer.
    """
    asker = Asker(use, plain)
    try:
        asker.plainly(COUNTED)
        for name, run in PROBES.items():
            begun = time.monotonic()
            try:
                verdict, evidence = run(asker)
            except EngineFault as fault:
                verdict, evidence = "not shown", str(fault)
            yield ProbeRow(name, verdict, evidence, time.monotonic() - begun)
    finally:
        asker.close()
