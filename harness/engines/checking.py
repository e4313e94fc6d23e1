"""Does speculation pay on a server, and is it safe? Short requests to it and to its plain decode, by turns.

Each prompt is decoded at T = 0 and at T = 1, and every answer comes with the probabilities of the most probable tokens.
At T = 0 the tokens are compared with those of the plain decode, and where both servers have decoded the same tokens so
far, so are their probabilities. At T = 1 the tokens of each server are bet against by its own probabilities
(`stridebench.harness.audit.of_rows`), so neither weights nor rounding matter. The verdicts are those of
`stridebench.harness.engines.serving.verdict`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stridebench.harness.core.engine import (
    GONE,
    Counters,
    Engine,
    EngineFault,
    EngineRequest,
    EngineWeights,
    Penalties,
    Reply,
    TokenRow,
)
from stridebench.harness.core.task import Prompt, Sampling
from stridebench.harness.engines.check_verdict import CheckedServer, Decoded, judged
from stridebench.harness.engines.openai import Server
from stridebench.harness.engines.serving.requests import PlannedRequest, ask, seed_of
from stridebench.harness.engines.serving.verdict import (
    Reference,
)
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse

TOP = 20
"""Most probable tokens that are asked for: as many as vLLM sends by default."""
TEMPERATURES = (0.0, 1.0)
WARMUP_TOKENS = 8
ADAPTERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp", "tensorrt_llm": "tensorrt_llm"}
"""Names that servers give as the owner of their model, and the engine that reads their answers."""


def adapter_of(url: str, key_env: str) -> str:
    """Return the engine whose answers a server sends, by the list of its models; ``openai`` if it is not known.

    Raises:
        EngineFault: nothing answers, or not as a server of models does.
    """
    server = Server(url, key_env, 30.0)
    try:
        owners = [str(entry.get("owned_by")) for entry in server.models()]
    finally:
        server.close()
    return next((ADAPTERS[owner] for owner in owners if owner in ADAPTERS), "openai")


class RowsEngine(Engine):
    """An engine that is asked for the most probable tokens too, and keeps those of its last answer.

    Args:
        penalties: of every request.
    """

    def __init__(self, engine: Engine, penalties: Penalties | None = None) -> None:
        self.engine, self._penalties = engine, penalties or Penalties()
        self.rows, self.prompt_ids = tuple[TokenRow, ...](), tuple[int, ...]()
        self.problem = ""

    def open(self, weights: EngineWeights) -> None:
        """Find the server."""
        self.engine.open(weights)

    def close(self) -> None:
        """Close the connections."""
        self.engine.close()

    def counters(self) -> Counters | None:
        """Return the server's counters, or None if it has none or they cannot be read; ``problem`` then says why."""
        try:
            return self.engine.counters() if self.engine.tells.counters else None
        except EngineFault as fault:
            self.problem = str(fault)
            return None

    def generate(self, request: EngineRequest) -> Reply:
        """Decode one prompt."""
        self.rows, self.prompt_ids = (), ()
        reply = self.engine.generate(replace(request, top_logprobs=TOP, penalties=self._penalties))
        self.rows, self.prompt_ids = reply.rows or (), reply.prompt_ids or ()
        return reply


def check(
    uses: Mapping[str, EngineUse],
    task: TaskUse,
    prompts: Sequence[Prompt],
    tokens: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> CheckedServer:
    """Ask the servers by turns, and judge their answers.

    Args:
        uses: the server as "speculative", and its plain decode, if there is one, as "plain".
        tokens: of each output, at most.
        seconds: after which no further prompt is begun; each temperature has half of them.

    Raises:
        EngineFault: a server cannot be used. UsageError: it sends no log-probabilities.
    """
    engines: dict[str, RowsEngine] = {}
    try:
        for role, use in uses.items():
            engines[role] = RowsEngine(use.make())
            engines[role].open(EngineWeights())
        cells = {
            temperature: {
                role: EngineCell(use, "", "", task, Sampling(temperature), tokens, ignore_eos=False, seed=0, role=role)
                for role, use in uses.items()
            }
            for temperature in TEMPERATURES
        }
        for role, engine in engines.items():
            _warm_up(engine, cells[TEMPERATURES[0]][role], prompts[0])
        begun = clock()
        decoded = {
            temperature: decode(engines, of_role, prompts, begun + share * seconds, clock)
            for share, (temperature, of_role) in zip((0.5, 1.0), cells.items(), strict=True)
        }
    finally:
        for engine in engines.values():
            engine.close()
    return judged(decoded)


def _warm_up(engine: RowsEngine, cell: EngineCell, prompt: Prompt) -> None:
    """Make a short request, which also tells whether the server can be checked."""
    row = ask(engine, cell, NOBODY, PlannedRequest(prompt, 0, WARMUP_TOKENS, 0, warmup=True), 0, 0)
    if row.status != "ok":
        raise EngineFault(str(row.fault), str(row.error).partition(": ")[2])
    if not any(one.top for one in engine.rows):
        raise UsageError(
            f"{cell.use.options['url']} sends no log-probabilities of the most probable tokens ({TOP} were asked for), "
            "without which nothing can be shown. Switch them on in the server or proxy; some engines send them at "
            "another endpoint (--engine)"
        )


NOBODY = Reference("", None)
"""No weights are needed."""


def decode(
    engines: Mapping[str, RowsEngine],
    cells: Mapping[str, EngineCell],
    prompts: Sequence[Prompt],
    until: float,
    clock: Callable[[], float],
) -> dict[str, Decoded]:
    """Decode prompts until the time is over; at least one. Servers take turns at going first."""
    decoded = {role: Decoded(cell) for role, cell in cells.items()}
    before = {role: engine.counters() for role, engine in engines.items()}
    start = time.perf_counter_ns()
    for turn, prompt in enumerate(prompts):
        if turn and clock() >= until:
            break
        for role in list(engines) if turn % 2 else reversed(list(engines)):
            cell, answers = cells[role], decoded[role]
            asked = PlannedRequest(prompt, 0, prompt.budget(cell.max_new_tokens), seed_of(cell, prompt, 0))
            row = ask(engines[role], cell, NOBODY, asked, turn, start)
            if row.fault in GONE:
                raise EngineFault(str(row.fault), str(row.error).partition(": ")[2])
            answers.requests.append(row)
            if row.status == "ok":
                answers.rows[prompt.id] = engines[role].rows
                answers.prompt_ids[prompt.id] = engines[role].prompt_ids
    for role, engine in engines.items():
        after, earlier = engine.counters(), before[role]
        decoded[role].problem = engine.problem
        if after is not None and earlier is not None:
            growth = after.since(earlier)
            if growth.backwards:
                decoded[role].problem = "they went backwards: it was started again, or several replicas answer"
            else:
                decoded[role].growth = growth.values
    return decoded
