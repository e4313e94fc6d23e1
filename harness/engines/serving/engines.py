"""All engines of a plan, one after the other; their requests are stored, then judged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stridebench.harness.core.engine import FAULTS, GONE, Counters, Engine, EngineFault, EngineWeights
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.engines.answer import KEY_ENV, ServerKey
from stridebench.harness.engines.serving.launch import declared, free_port, last_lines, started
from stridebench.harness.engines.serving.requests import Drive, PlannedRequest, ask, scheduled, seed_of
from stridebench.harness.engines.serving.verdict import EngineJudge, Reference
from stridebench.harness.errors import StrideError, printable_line
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.plan.suite import EngineSuite
from stridebench.harness.record.entries import CellMeta, StoredCounters
from stridebench.harness.record.requests import Request, measures, table
from stridebench.harness.record.store import Store
from stridebench.harness.run.engine_runner import StoppedEngine
from stridebench.harness.run.loading import Options

# One cell of an engine: warm-up, the check of its seed, its requests under load, and its counters.


WARMUP_TOKENS = 8
SEED_TOKENS = 32
"""Tokens of the two requests that tell whether a seed is honoured."""


class CellRun:
    """Runs the requests of one cell that are not stored yet.

    Args:
        engine: open.
        prompts: of its task.
        repetitions: of each prompt.
        warmup: requests before those that count.
    """

    def __init__(
        self,
        engine: Engine,
        cell: EngineCell,
        store: Store,
        reference: Reference,
        prompts: Sequence[Prompt],
        repetitions: int,
        warmup: int,
    ) -> None:
        self._engine, self._cell, self._store, self._reference = engine, cell, store, reference
        self._prompts, self._repetitions, self._warmup = prompts, repetitions, warmup
        rows = store.requests(cell.id)
        self._session = max((row.session for row in rows), default=-1) + 1
        self._done = {row.key for row in rows if row.fault not in GONE}
        self._start = time.perf_counter_ns()

    def run(self) -> None:
        """All of its requests; the cell is sealed when each has an answer.

        Raises:
            EngineFault: the server is gone; finished requests are kept.
        """
        todo = scheduled(self._cell, self._todo(), self._session)
        self._warm_up()
        before = self._counters()
        self._start = time.perf_counter_ns()
        rows: list[Request] = []
        drive = Drive(self._send, lambda row: self._keep(rows, row), self._start)
        drive.run(todo, self._cell.concurrency)
        if drive.gone is not None:
            raise _fault(drive.gone)
        meta = self._store.manifest.engines[self._cell.id]
        if before is not None:
            meta = meta.merged(CellMeta(counters=self._growth(before, rows)))
        self._store.seal(self._cell.id, meta.merged(CellMeta(status="done", told=dict(self._engine.told()))))

    def _todo(self) -> list[PlannedRequest]:
        keys = [(prompt, repetition) for repetition in range(self._repetitions) for prompt in self._prompts]
        if self._cell.role == "floor":
            keys.reverse()
        open_keys = [(prompt, r) for prompt, r in keys if (prompt.id, r, False) not in self._done]
        return [self._planned(prompt, repetition) for prompt, repetition in open_keys]

    def _planned(self, prompt: Prompt, repetition: int) -> PlannedRequest:
        cell = self._cell
        return PlannedRequest(prompt, repetition, prompt.budget(cell.max_new_tokens), seed_of(cell, prompt, repetition))

    def _warm_up(self) -> None:
        """Some short requests, and two that differ in nothing, which must be answered alike."""
        first = self._prompts[0]
        for repetition in range(self._warmup):
            asked = PlannedRequest(
                first, repetition, WARMUP_TOKENS, seed_of(self._cell, first, repetition), warmup=True
            )
            self._check_gone(self._send(asked))
        if self._cell.sampling.temperature > 0 and self._cell.role != "floor":
            tokens = min(SEED_TOKENS, self._cell.max_new_tokens)
            number = self._warmup
            asked = PlannedRequest(first, number, tokens, seed_of(self._cell, first, number), warmup=True)
            pair = [
                self._check_gone(self._send(asked)),
                self._check_gone(self._send(replace(asked, repetition=number + 1))),
            ]
            one, other = (row.tokens if row.tokens is not None else row.text for row in pair)
            if all(row.status == "ok" for row in pair) and one != other:
                detail = f"{FAULTS['seed_ignored']}: one request, made twice with seed {asked.seed}, has two outputs"
                self._store.write_request(
                    self._cell.id, replace(pair[1], status="failed", fault="seed_ignored", error=detail)
                )

    def _check_gone(self, row: Request) -> Request:
        self._store.write_request(self._cell.id, row)
        if row.fault in GONE:
            raise _fault(row)
        return row

    def _send(self, asked: PlannedRequest) -> Request:
        return ask(self._engine, self._cell, self._reference, asked, self._session, self._start)

    def _keep(self, rows: list[Request], row: Request) -> None:
        rows.append(row)
        self._store.write_request(self._cell.id, row)

    def _counters(self) -> Counters | EngineFault | None:
        """The counters of now, or why they cannot be read, which no request hangs on.

        Raises:
            EngineFault: the server is gone.
        """
        try:
            return self._engine.counters() if self._engine.tells.counters else None
        except EngineFault as fault:
            if fault.kind in GONE:
                raise
            return fault

    def _growth(self, before: Counters | EngineFault, rows: Sequence[Request]) -> StoredCounters:
        """Compare the growth of the server's counters with the numbers that the requests told."""
        after = self._counters()
        for reading in (before, after):
            if isinstance(reading, EngineFault):
                return StoredCounters(problem=printable_line(str(reading)))
        assert isinstance(before, Counters) and not isinstance(after, EngineFault), "faults are handled above"
        if after is None:
            return StoredCounters(problem="the server stopped to export its counters")
        growth = after.since(before)
        facts = StoredCounters(
            growth=dict(growth.values), per_position=[growth.per_position[k] for k in sorted(growth.per_position)]
        )
        if growth.backwards:
            return facts.merged(StoredCounters(problem="the counters went backwards: the server was started again"))
        if any(row.status != "ok" for row in rows):
            return facts.merged(StoredCounters(problem="some requests failed, which the server may have counted"))
        return facts.merged(StoredCounters(disagree=disagreements(growth, rows)))


def _fault(row: Request) -> EngineFault:
    """The fault of a request that failed."""
    kind = str(row.fault)
    return EngineFault(kind, str(row.error).removeprefix(f"{FAULTS[kind]}: "))


def disagreements(growth: Counters, rows: Sequence[Request]) -> list[str]:
    """Return the disagreements between the server's counters and the requests."""
    lines = []
    for name, counted in growth.values.items():
        told = [getattr(row, name) for row in rows]
        numbers = [value for value in told if value is not None]
        if numbers and len(numbers) == len(told) and sum(numbers) != counted:
            lines.append(f"{name}: the counters grew by {counted:g}, and the requests told {sum(numbers)}")
    accepted = growth.values.get("accepted")
    if growth.per_position and accepted is not None and sum(growth.per_position.values()) != accepted:
        places = sum(growth.per_position.values())
        lines.append(f"accepted: the counter grew by {accepted:g}, and those of its positions by {places:g}")
    return lines


def run_engines(plan: Plan, store: Store, options: Options) -> list[StoppedEngine]:
    """Run every cell of an engine that is not sealed yet.

    Returns:
        The engines that stopped; their finished requests are kept for `--resume`.

    Raises:
        WeightsError: the backbone's weights are not there. RunIncomplete: the disk is full.
    """
    suite = plan.suite.suite
    assert isinstance(suite, EngineSuite), "a plan with engines is of such a suite"
    stopped: list[StoppedEngine] = []
    for name, dtype in dict.fromkeys((cell.backbone, cell.dtype) for cell in plan.runnable_engines):
        cells = [cell for cell in plan.runnable_engines if (cell.backbone, cell.dtype) == (name, dtype)]
        if all(store.sealed(cell.id) and store.meta(cell.id).verdict is not None for cell in cells):
            continue
        options.progress.say(f"loading {name} as the engines' reference")
        reference = Reference.load(name, dtype, options.device, options.fetch, suite.reference)
        group = _Group(plan, reference, store, options)
        for use in dict.fromkeys(cell.use for cell in cells):
            own = [cell for cell in cells if cell.use == use and not store.sealed(cell.id)]
            fault = group.run(use, own) if own else None
            if fault is not None:
                stopped.append(StoppedEngine(use.label, fault))
        options.progress.say("judging the engines' tokens")
        group.judge([cell for cell in cells if store.sealed(cell.id)])
    return stopped


class _Group:
    """The engines of one backbone."""

    def __init__(self, plan: Plan, reference: Reference, store: Store, options: Options) -> None:
        self._plan, self._reference = plan, reference
        self._store, self._options = store, options

    def run(self, use: EngineUse, cells: Sequence[EngineCell]) -> EngineFault | None:
        """Run the cells of one engine, and return why it stopped, or None if it finished."""
        suite = self._plan.suite.suite
        try:
            with self._opened(use) as engine:
                for cell in cells:
                    self._options.progress.say(f"{cell.label}, T = {cell.sampling.temperature:g}, load {cell.load}")
                    prompts = self._plan.prompts[cell.task]
                    repetitions = self._plan.repetitions(cell.task)
                    CellRun(engine, cell, self._store, self._reference, prompts, repetitions, suite.warmup).run()
        except StrideError as error:
            if not isinstance(error, EngineFault):
                raise
            fault = error
        except Exception as error:  # opening or closing an engine of another package may raise anything
            fault = EngineFault("engine_error", f"{use.name}: {type(error).__name__}: {error}")
        else:
            return None
        self._options.progress.say(f"{use.label} stopped: {fault}")
        return fault

    @contextmanager
    def _opened(self, use: EngineUse) -> Iterator[Engine]:
        """Open the engine, with its server if the suite starts one."""
        with ExitStack() as stack:
            address: dict[str, str] = {}
            if use.starts:
                server = declared(use.serve)
                host = "127.0.0.1"
                port = free_port(host, server.port)
                address["url"] = f"http://{host}:{port}"
                weights = self._reference.weights
                own = weights.gguf() if server.weights == "gguf" else weights.folder
                words = server.words(str(use.options.get("model") or own or ""), use.method, host, port)
                address["model"] = ""  # it serves one model, under a name that it chooses
                place = self._store.notes.log_of_worker(f"engine-{use.label}", "server")
                log = stack.enter_context(open(place, "wb"))
                try:
                    stack.enter_context(started(server, words, address["url"], log, use.method))
                except EngineFault as fault:
                    text = last_lines(place, ServerKey(str(use.options.get("key_env", KEY_ENV))))
                    end = f", which ends: {text}" if text else ""
                    raise EngineFault(fault.kind, f"{fault.detail}; its output: {place}{end}") from fault
            engine = stack.enter_context(use.make(**address))
            engine.open(self._reference.weights)
            yield engine

    def judge(self, cells: Sequence[EngineCell]) -> None:
        """The verdicts of the cells that are sealed."""
        ids = {
            (cell.task.title, prompt.id): self._reference.ids(prompt)
            for cell in cells
            for prompt in self._plan.prompts[cell.task]
        }
        EngineJudge(self._store, self._reference, cells, ids).judge()


# A fixed set of probes against a running server: acceptance and latency as one line of a history.


TOLD = ("length_per_draft", "length_per_pass")
SHOWN = ("acceptance", "ttft_ms_p50", "tpot_ms_p50", "tokens_per_second")


class Watched:
    """A server under watch.

    Args:
        use: the engine, with its address as an option.
        task: of the probes, for the setting's name.
        prompts: the probes, the same every time.
        tokens: of each output; the end of text is ignored, outputs are greedy.
    """

    def __init__(self, use: EngineUse, task: TaskUse, prompts: Sequence[Prompt], tokens: int) -> None:
        self._prompts = prompts
        sampling = Sampling(temperature=0.0)
        self._cell = EngineCell(use, use.name, "", task, sampling, tokens, ignore_eos=True, seed=0)
        self._counted = Counters()

    def line(self) -> dict[str, object]:
        """Return one reading, a line of a history (`reports.history.series`). If it failed: the fault and no figures.

        ``restarted`` is there if the server's counters are below those of the reading before.
        """
        use, created = self._cell.use, datetime.now(UTC).isoformat(timespec="milliseconds")
        facts: dict[str, Any] = {
            **{"created": created, "run": use.options["url"], "cell": f"watch.{use.name}", "label": use.label},
            **{"backbone": use.name, "dtype": "", "temperature": 0.0, "task": self._cell.task.title},
        }
        try:
            with use.make() as engine:
                engine.open(EngineWeights())
                return {**facts, **self._read(engine), "status": "done", "machine": use.options["url"]}
        except EngineFault as fault:
            return {**facts, "status": "failed", "fault": fault.kind, "error": str(fault)}

    def _read(self, engine: Engine) -> dict[str, object]:
        before = engine.counters() if engine.tells.counters else None
        restarted = before is not None and before.since(self._counted).backwards
        rows = list(self._ask(engine))
        after = engine.counters() if before is not None else None
        self._counted = after or Counters()
        growth = after.since(before) if after is not None and before is not None else None
        if growth is not None and growth.backwards:
            raise EngineFault("server_died", "its counters went backwards between two probes")
        frame = table(rows).to_pandas(use_threads=False)
        figures = measures(frame, dict(growth.values) if growth is not None else {}, {})
        return {
            **({"restarted": True} if restarted else {}),
            **{name: figures[f"{name}_pooled"] for name in TOLD},
            **{name.removesuffix("_p50"): figures[name] for name in SHOWN},
        }

    def _ask(self, engine: Engine) -> list[Request]:
        start, rows = time.perf_counter_ns(), []
        for prompt in self._prompts:
            asked = PlannedRequest(prompt, 0, self._cell.max_new_tokens, seed_of(self._cell, prompt, 0))
            row = ask(engine, self._cell, Reference(self._cell.backbone, None), asked, 0, start)
            if row.status != "ok":
                raise EngineFault(str(row.fault), str(row.error).partition(": ")[2])
            rows.append(row)
        return rows
