"""All engines of a plan, one after the other; their requests are stored, then judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.engine import Engine, EngineFault
from stridebench.harness.engines.keys import KEY_ENV, Key
from stridebench.harness.errors import StrideError
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.plan.engine_entries import EngineUse
from stridebench.harness.plan.suite import EngineSuite
from stridebench.harness.record.request_store import RequestStore
from stridebench.harness.record.store import Store
from stridebench.harness.run.options import Options
from stridebench.harness.run.serving.cell import CellRun
from stridebench.harness.run.serving.launch import declared, free_port, last_lines, started
from stridebench.harness.run.serving.reference import Reference
from stridebench.harness.run.serving.verdict import Judge


@dataclass(frozen=True)
class Stopped:
    """An engine that could not finish its cells, and why."""

    label: str
    fault: EngineFault


def run_engines(plan: Plan, store: Store, options: Options) -> list[Stopped]:
    """Every cell of an engine that is not sealed yet.

    Returns:
        The engines that stopped; what they finished is kept for `--resume`.

    Raises:
        WeightsError: the backbone's weights are not there. RunIncomplete: the disk is full.
    """
    suite = plan.suite.suite
    assert isinstance(suite, EngineSuite), "a plan with engines is of such a suite"
    requests = RequestStore.of(store.path, store.manifest)
    requests.clear()
    stopped: list[Stopped] = []
    for name, dtype in dict.fromkeys((cell.backbone, cell.dtype) for cell in plan.runnable_engines):
        cells = [cell for cell in plan.runnable_engines if (cell.backbone, cell.dtype) == (name, dtype)]
        if all(requests.sealed(cell.id) for cell in cells) and _judged(requests, cells):
            continue
        options.progress.say(f"loading {name} as the engines' reference")
        reference = Reference.load(name, dtype, options.device, options.fetch, suite.reference)
        group = _Group(plan, requests, reference, store, options)
        for use in dict.fromkeys(cell.use for cell in cells):
            own = [cell for cell in cells if cell.use == use and not requests.sealed(cell.id)]
            fault = group.run(use, own) if own else None
            if fault is not None:
                stopped.append(Stopped(use.label, fault))
        options.progress.say("judging the engines' tokens")
        group.judge([cell for cell in cells if requests.sealed(cell.id)])
    return stopped


def _judged(requests: RequestStore, cells: Sequence[EngineCell]) -> bool:
    return all("verdict" in requests.cell(cell.id).meta for cell in cells)


class _Group:
    """The engines of one backbone."""

    def __init__(
        self, plan: Plan, requests: RequestStore, reference: Reference, store: Store, options: Options
    ) -> None:
        self._plan, self._requests, self._reference = plan, requests, reference
        self._store, self._options = store, options

    def run(self, use: EngineUse, cells: Sequence[EngineCell]) -> EngineFault | None:
        """The cells of one engine; returns why it stopped, None where it finished."""
        suite = self._plan.suite.suite
        try:
            with self._opened(use) as engine:
                for cell in cells:
                    self._options.progress.say(f"{cell.label}, T = {cell.sampling.temperature:g}, load {cell.load}")
                    prompts = self._plan.prompts[cell.task]
                    CellRun(
                        engine, cell, self._requests, self._reference, prompts, suite.repetitions, suite.warmup
                    ).run()
                    self._store.publish(f"engines/{cell.id}")
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
        """The engine, with its server where the suite starts one."""
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
                address["model"] = ""  # it serves one model, under a name of its own
                place = self._store.log_of_worker(f"engine-{use.label}", "server")
                log = stack.enter_context(open(place, "wb"))
                try:
                    stack.enter_context(started(server, words, address["url"], log, use.method))
                except EngineFault as fault:
                    raise EngineFault(
                        fault.kind, f"{fault.detail}; its output: {place}{_quoted(use, place)}"
                    ) from fault
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
        Judge(self._requests, self._reference, cells, ids).judge()
        for cell in cells:
            self._store.publish(f"engines/{cell.id}")


def _quoted(use: EngineUse, log: Path) -> str:
    """The end of a server's output as an error quotes it."""
    text = last_lines(log, Key(str(use.options.get("key_env", KEY_ENV))))
    return f", which ends: {text}" if text else ""
