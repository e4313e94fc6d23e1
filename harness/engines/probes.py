"""Probes of a server with drafts: what a refused draft, a shared prefix or a late end leaves behind.

Each probe is a handful of short requests at T = 0 whose tokens are compared with the plain decode: that of a second
server, or of the same server asked for one token at a time, where no draft can be kept. Differences are judged as in
`stridebench.harness.engines.check_verdict`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from stridebench.harness.audit.of_rows import below_best, top_of, width_of
from stridebench.harness.core.engine import EngineFault, EngineRequest, EngineWeights, Penalties, Reply
from stridebench.harness.core.task import Sampling
from stridebench.harness.engines.answer import begins_json
from stridebench.harness.engines.check_verdict import ENDED, SAFE, SKIPPED, UNSAFE, Decoded, ProbeRow, compared
from stridebench.harness.engines.checking import TOP
from stridebench.harness.engines.openai import OpenAI, read_counters
from stridebench.harness.engines.serving.verdict import NEAR_TIE, word
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse

TOKENS = 16
"""Of an output."""
COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,"
CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n"
TOLD = "The cat sat on the mat. The dog sat on the rug. The cat sat on the mat. The dog sat"
ASKS = ("<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n", "Question: Is ice cold?\nAnswer: Yes.\n\n")
THOUGHT = 2 * "<think>\nTwo and two is four.\n</think>\nFour.\n" + "<think>\nTwo and two is"
AGES = "Write the ages of Ann (31) and Bob (25) as one JSON object.\n"
BUDGETS = ("length", "limit")  # words of engines for an output that its budget has ended
SAMPLES = ("openai", "vllm")  # engines whose requests take `n` at the top level
PREEMPTIONS = {"vllm": "vllm:num_preemptions_total"}  # requests that lost their place in the cache
BY_CHANCE = 1e-6  # what a right server does as rarely as this says something against it
STOPS = ("openai", "vllm", "llama_cpp")  # engines whose requests take `stop` at the top level
JSON_ONLY: Mapping[str, Mapping[str, Any]] = {
    "openai": {"response_format": {"type": "json_object"}},
    "vllm": {"response_format": {"type": "json_object"}},
    "llama_cpp": {"json_schema": {}},
}
"""The fields of a request whose output must be JSON."""


@dataclass
class Asker:
    """Requests to a server, and its plain decode of prompts, each of which is made once.

    Args:
        use: the server's entry.
        plain: that of its plain decode, or None for one token at a time.

    Attributes:
        kept: plain decodes by prompt and budget.
        engines: those that are open, by their entry and options.
    """

    use: EngineUse
    plain: EngineUse | None
    kept: dict[tuple[str | Sequence[int], int, str], Reply] = field(default_factory=dict)
    engines: dict[str, OpenAI] = field(default_factory=dict)

    def ask(
        self, prompt: str | Sequence[int], tokens: int = TOKENS, use: EngineUse | None = None, **fields: Any
    ) -> Reply:
        """Return the answer to a prompt at T = 0, unless the fields of `EngineRequest` are given too.

        Raises:
            EngineFault: the request failed.
        """
        chosen = self.use if use is None else use
        sampled = {key: fields.pop(key) for key in ("temperature", "seed", "penalties") if key in fields}
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
        try:
            return engine.generate(request)
        except EngineFault as fault:
            if fault.kind != "cut_short":
                raise
            return engine.generate(request)  # servers close a connection after some number of requests

    def _opened(self, use: EngineUse) -> OpenAI:
        key = f"{use.label} {use.options}"
        if key not in self.engines:
            engine = use.make()
            if not isinstance(engine, OpenAI):
                raise UsageError(f"{use.name} is not a server that can be probed; `stride list engines` has some")
            self.engines[key] = engine
            engine.open(EngineWeights())
        return self.engines[key]

    def close(self) -> None:
        """Close all connections."""
        for engine in self.engines.values():
            engine.close()

    def ids_of(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Return the ids of a prompt as the server reads it; empty if it does not tell them."""
        return self._opened(self.use).tokenise(prompt) if isinstance(prompt, str) else tuple(prompt)

    def preempted(self) -> float | None:
        """Return how many requests the server has preempted so far, or None if it does not count them."""
        engine, name = self._opened(self.use), PREEMPTIONS.get(self.use.name)
        if name is None or engine.counters() is None:  # none are exported
            return None
        text = engine.server.text(engine.metrics_path)
        return read_counters(text, {"preempted": name}).values.get("preempted")

    def below_best(self, prompt: str, penalties: Penalties, use: EngineUse) -> list[float]:
        """Return how far tokens lie below the best ones behind penalties; empty if probabilities are not sent."""
        reply, engine = self.ask(prompt, use=use, penalties=penalties), self._opened(use)
        rows = reply.whole_rows
        if engine.scores_penalised:
            rows = engine.score(self.ids_of(prompt), reply.tokens or (), TOP, penalties)
        width = width_of([rows])
        return below_best(rows, width, Penalties() if engine.scores_penalised else penalties) if width else []

    def plainly(self, prompt: str | Sequence[int], tokens: int = TOKENS, **fields: Any) -> Reply:
        """Return the plain decode of a prompt, with the fields that ``ask`` takes.

        Raises:
            UsageError: it takes token ids that the server does not send.
        """
        key = prompt, tokens, str(fields)
        if key not in self.kept:
            if self.plain is None:
                self.kept[key] = self._one_by_one(prompt, tokens, fields)
            else:
                self.kept[key] = self.ask(prompt, tokens, self.plain, **fields)
        return self.kept[key]

    def _one_by_one(self, prompt: str | Sequence[int], budget: int, fields: Mapping[str, Any]) -> Reply:
        reply = self.ask(prompt, 1, **fields)
        ids = list(reply.prompt_ids or self.ids_of(prompt))
        tokens, rows, text = list(reply.tokens or ()), list(reply.rows or ()), reply.text or ""
        if not ids or not tokens:
            raise UsageError(
                f"{self.use.options['url']} sends no token ids of prompts and outputs, so its plain decode cannot be "
                "asked for token by token; name a server of the same model without drafts with --plain"
            )
        while reply.tokens and len(tokens) < budget and reply.finish in BUDGETS:
            reply = self.ask([*ids, *tokens], 1, **fields)
            tokens += reply.tokens or ()
            rows += reply.rows or ()
            text += reply.text or ""
        return replace(reply, tokens=tuple(tokens), rows=tuple(rows), output_tokens=len(tokens), text=text)

    def judged(self, answers: Mapping[str, tuple[Reply, Reply]]) -> tuple[str, str]:
        """Return the verdict and the evidence of answers and their plain decodes, by what tells them apart."""
        no_task: Any = None
        task = TaskUse("probe", no_task, None)
        cell = EngineCell(self.use, "", "", task, Sampling(0.0), TOKENS, ignore_eos=False, seed=0, role="speculative")
        own, plain = Decoded(cell), Decoded(replace(cell, role="plain"))
        for name, (reply, reference) in answers.items():
            own.rows[name], plain.rows[name] = reply.whole_rows, reference.whole_rows
        if not all(own.rows.values()) or not all(plain.rows.values()):
            return "not shown", "a server sends no probabilities of some tokens, by which near ties are known"
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
        expected = min(budget, plain.output_tokens or budget)
        if reply.output_tokens not in (expected, None):
            return "differs", f"max_tokens {budget} gave {reply.output_tokens} tokens"
        plain = replace(plain, rows=plain.whole_rows[:budget], output_tokens=expected)
        answers[f"max_tokens {budget}"] = reply, plain
    return asker.judged(answers)


def _stops(asker: Asker) -> tuple[str, str]:
    """A stop string that comes up in the middle of a draft: nothing behind it may be sent."""
    if asker.use.name not in STOPS:
        return SKIPPED, f"requests of {asker.use.name} are not known to take stop strings"
    whole = asker.ask(COUNTED).text or ""
    stop = whole[len(whole) // 2 :][:3]
    if not stop:
        return "not shown", "the server sends no text"
    sent, expected = asker.ask(COUNTED, stop=[stop]).text or "", whole[: whole.index(stop)]
    if sent == expected:
        return "same tokens", f"the output ends at {stop!r}"
    if asker.plain is not None and stop in sent and stop in (asker.plainly(COUNTED, stop=[stop]).text or ""):
        return SKIPPED, f"the plain decode sends the stop string {stop!r} too"
    return "differs", f"with the stop string {stop!r} it sent {sent[-20:]!r} instead of {expected[-20:]!r}"


def _ends(asker: Asker) -> tuple[str, str]:
    """An end of text that stands in the prompt before, so that a draft holds it: nothing behind it may be sent."""
    for prompt in ASKS:
        before = asker.plainly(prompt, 3 * TOKENS)
        text = (*asker.ids_of(prompt), *(before.tokens or ()), *asker.ids_of(prompt))
        if before.finish in BUDGETS or before.tokens is None or not asker.ids_of(prompt):
            continue
        plain, own = asker.plainly(text, 3 * TOKENS), asker.ask(text, 3 * TOKENS)
        if plain.finish in BUDGETS or not plain.whole_rows:
            continue
        sent, expected = ([row.token for row in one.rows or ()] for one in (own, plain))
        if len(sent) > len(expected) and sent[: len(expected)] == expected:
            return "differs", f"{len(sent) - len(expected)} tokens were sent behind the end of the text"
        return asker.judged({"an end of text": (own, plain)})
    return SKIPPED, f"no prompt of the probe made the model end its text within {3 * TOKENS} tokens that have ids"


def _thinks(asker: Asker) -> tuple[str, str]:
    """The end of a thought in a draft; behind it an output may be held to JSON."""
    verdict, evidence = asker.judged({THOUGHT: (asker.ask(THOUGHT), asker.plainly(THOUGHT))})
    if verdict not in SAFE:
        return verdict, evidence
    behind, said = _json(asker, THOUGHT)
    return behind if behind in UNSAFE else verdict, f"{evidence}; behind the thought: {said}"


def _samples(asker: Asker) -> tuple[str, str]:
    """Two samples of one prompt that top-k 1 makes greedy."""
    if asker.use.name not in SAMPLES:
        return SKIPPED, f"requests of {asker.use.name} are not known to take `n`"
    answers = {}
    for sample in (0, 1):
        use = replace(asker.use, options={**asker.use.options, "sample": sample})
        reply = asker.ask(COUNTED, use=use, temperature=1.0, n=2, top_k=1)
        answers[f"sample {sample + 1}"] = reply, asker.plainly(COUNTED)
    verdict, evidence = asker.judged(answers)
    if verdict in UNSAFE:
        same = asker.plainly(COUNTED, temperature=1.0, top_k=1), asker.plainly(COUNTED)
        if asker.judged({COUNTED: same})[0] in UNSAFE:
            return SKIPPED, "top-k 1 does not make the plain decode greedy either"
    return verdict, evidence


def _preempted(asker: Asker) -> tuple[str, str]:
    """Many requests at once, some of which lose their place in the cache and are begun again."""
    before = asker.preempted()
    if before is None:
        return SKIPPED, f"{asker.use.options['url']} counts no preemptions"
    prompts = [" b" * (40 * number) + "\n" + COUNTED for number in range(1, 9)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = list(pool.map(asker.ask, prompts))
    if (asker.preempted() or 0.0) <= before:
        return SKIPPED, f"{len(prompts)} requests at once were not preempted: start it with a smaller cache"
    return asker.judged(
        {prompt: (reply, asker.plainly(prompt)) for prompt, reply in zip(prompts, replies, strict=True)}
    )


def _penalised(asker: Asker) -> tuple[str, str]:
    """Penalties at every verified position: by the rows that are sent, and for repetition by the plain decode."""
    unknown = "not shown", "a server sends no probabilities of some tokens, by which penalties are judged"
    presence, repeated = Penalties(presence=1.5), Penalties(repetition=1.5)
    if not (lower := asker.below_best(COUNTED, presence, asker.use)):
        return unknown
    if max(lower) > NEAR_TIE:
        if asker.plain is not None and max(asker.below_best(COUNTED, presence, asker.plain), default=1.0) > NEAR_TIE:
            return SKIPPED, "the tokens of the plain decode are not those behind a presence penalty either"
        place = lower.index(max(lower))
        return "differs", f"with a presence penalty of 1.5 token {place + 1} lies {max(lower):.2f} nats below the best"
    own, plain = (ask(CODE, penalties=repeated).whole_rows for ask in (asker.ask, asker.plainly))
    if not own or not plain:
        return unknown
    for place, (one, other) in enumerate(zip(own, plain, strict=False)):
        if one.token != other.token:
            dropped = one.token == next(iter(top_of(other, 1)), None)
            said = f"with a repetition penalty of 1.5 token {place + 1} is {one.token!r}, and plainly {other.token!r}"
            return ("differs", f"{said}: as if there was none") if dropped else ("not shown", said)
    return "same tokens", "presence by the rows that are sent, repetition by the plain decode"


def _json(asker: Asker, prompt: str = AGES) -> tuple[str, str]:
    """An output that a grammar holds to JSON, behind a thought if it begins with one."""
    if asker.use.name not in JSON_ONLY:
        return SKIPPED, f"how requests of {asker.use.name} ask for JSON is not known"
    said: list[str] = []
    for use in (asker.use, asker.plain) if asker.plain else (asker.use,):
        reply = asker.ask(prompt, 3 * TOKENS, use, **JSON_ONLY[asker.use.name])
        text = (reply.text or "").rpartition("</think>")[2].strip()
        if begins_json(text, whole=reply.finish not in BUDGETS):
            right = "same tokens", f"{text[:30]!r} is JSON or the beginning of it"
            return ("differs", said[0]) if said else right
        said.append(f"{text[:60]!r} is not JSON ({reply.finish})")
    return (SKIPPED, f"{said[0]}, and the plain decode sends none either") if asker.plain else ("differs", said[0])


def _seeds(asker: Asker) -> tuple[str, str]:
    """At T = 1 equal seeds give equal outputs, and different ones do not."""
    rows, *outputs = [asker.ask(CODE, temperature=1.0, seed=seed).whole_rows for seed in (1, 1, 2, 3)]
    first, again, *others = [[row.token for row in one] for one in (rows, *outputs)]
    if not all((first, again, *others)):
        return "not shown", "the server sends no probabilities of some tokens, by whose names they are compared"
    if all(other == first for other in others):
        chance = math.exp(2 * sum(row.top.get(row.token, 0.0) for row in rows))
        said = f"three seeds gave one output at T = 1, whose chance is {chance:.2g} at most"
        if chance > BY_CHANCE:
            return "not shown", said
        texts = {asker.plainly(CODE, temperature=1.0, seed=seed).text for seed in (2, 3)} if asker.plain else set()
        return ("not shown", f"{said}, and two gave one plain decode") if len(texts) == 1 else ("differs", said)
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
    "an end of text in a draft": _ends,
    "the end of a thought in a draft": _thinks,
    "JSON": _json,
    "two samples of one prompt": _samples,
    "penalties": _penalised,
    "preemption": _preempted,
    "seeds": _seeds,
}


def _failed(asker: Asker) -> str:
    """Return the verdict of a probe whose request failed, by whether the server still answers one."""
    try:
        asker.ask(COUNTED, 1)
    except EngineFault:
        return ENDED
    return "not shown"


def probe(use: EngineUse, plain: EngineUse | None) -> Iterator[ProbeRow]:
    """Run the probes one after the other, until one ends the server.

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
                verdict, evidence = _failed(asker), str(fault)
            yield ProbeRow(name, verdict, evidence, time.monotonic() - begun)
            if verdict == ENDED:
                return
    finally:
        asker.close()
