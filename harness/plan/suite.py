"""A suite: YAML -> models of pydantic, in one pass; every error with its file and line.

All faults of entries and keys are reported at once; whether entries fit together is checked when each is valid.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from stridebench.harness.core.task import Sampling
from stridebench.harness.discover import plain, report_files
from stridebench.harness.errors import UnknownNameError, did_you_mean
from stridebench.harness.plan.entries import (
    MOST,
    BackboneEntry,
    EngineEntry,
    MethodEntry,
    Strict,
    TaskEntry,
    TaskUse,
    listed,
)
from stridebench.harness.plan.lookup import Fault, faults_error
from stridebench.harness.plan.yaml_lines import parse

ENTRIES = {"methods": "--method", "backbones": "--backbone", "tasks": "--task"}
"""Keys of a suite that an option of the command line replaces entry by entry."""
ANY_TEXT = ("prompt_lookup", "lookahead")
"""Methods that decode prompts if no suite is named: those that need neither a drafter nor training."""


def _whole_number(name: str, least: int) -> PlainValidator:
    """Accept one value, or several to sweep."""

    def check(value: Any) -> int | tuple[int, ...]:
        values = value if isinstance(value, list | tuple) and value else [value]
        if not all(type(number) is int and least <= number <= MOST for number in values):
            raise ValueError(f"{name} is a whole number from {least} to {MOST}, or a list of them to sweep")
        return tuple(values) if isinstance(value, list | tuple) else int(value)

    return PlainValidator(check)


TopK = Annotated[int | tuple[int, ...], _whole_number("top_k", 0)]
Batch = Annotated[int | tuple[int, ...], _whole_number("batch", 1)]


class GreedyCheck(Strict):
    """Size of the check of greedy equality in fp32 on a real backbone; 0 prompts: no check."""

    prompts: int = Field(2, ge=0, le=MOST)
    tokens: int = Field(32, ge=1, le=MOST)


@functools.cache
def reports() -> tuple[str, ...]:
    """Return the names of all reports."""
    files = (parse(path.read_text(encoding="utf-8")).data for path in report_files())
    return tuple(name for file in files for name in file.get("reports", ()))


def _is_report(name: str) -> str:
    if reports() and name not in reports():  # without the papers' files, no run has a report
        raise ValueError(str(UnknownNameError("report", name, reports())))
    return name


class PaperEntry(Strict):
    """The paper whose report a run ends with (`stridebench.reports.papers`), and the cells of its roles."""

    name: Annotated[str, AfterValidator(_is_report)]
    roles: dict[str, dict[str, Any]] = Field(default_factory=dict)


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of a duration."""


def seconds_of(value: Any) -> Any:
    """Return the seconds of a duration such as 90s, 4m or 1.5h, or of a number.

    Raises:
        ValueError: it is neither, or not above zero.
    """
    text = str(value).strip()
    try:
        seconds = float(text) if text[-1:] not in UNITS else float(text[:-1]) * UNITS[text[-1]]
    except ValueError:
        seconds = math.nan
    if isinstance(value, bool) or not 0 < seconds < math.inf:
        raise ValueError("a budget is a time such as 90s, 4m or 1h")
    return seconds


def duration_words(seconds: float) -> str:
    """Return a duration as a person says it: seconds, minutes and seconds, or hours and minutes."""
    whole = max(1, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


class Chosen(Strict):
    """What a budget came to on the machine of the run: `stridebench.harness.plan.budget` chooses it.

    Args:
        tokens: the share of the token budget that texts have.
        dropped: cells that do not run, by id, with the reason.
    """

    prompts: int = Field(ge=1)
    tokens: float = Field(1.0, gt=0, le=1)
    seconds: float = 0.0
    dropped: dict[str, str] = Field(default_factory=dict)


BY_NAME = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
WITHOUT_SIGN = AfterValidator(lambda value: value + 0.0)
"""Make 0.0 of -0.0, whose cells would have ids of their own."""
UNLESS_AUTO = BeforeValidator(lambda value: None if value == "auto" else value)


class Suite(Strict):
    """A suite as written in YAML.

    A list in place of a scalar is a sweep: every value in turn. ``methods: all`` and ``backbones: all``
    are everything registered, at its defaults. ``at`` in a method's entry limits it to some temperatures.
    ``beside`` in the file maps a backbone to those that run whenever it does, named on the command line or not.
    ``report`` names the paper's report that the run ends with. ``variants`` in the file maps a name to the keys that
    replace the file's when ``--only NAME`` chooses it.
    ``isolation: process`` runs the cells of methods in a worker process, ``none`` in the main one; not given: process
    for methods of other packages. The two limits are seconds of wall time; they hold for cells in a worker,
    and ``sample_limit_s`` for the scorer of every task.
    ``threads: auto``, the default, times passes with 1, 2, 4, ... threads once a backbone and takes the best.
    ``budget``: a time such as 4m in which the run ends; it measures what passes cost and chooses prompts, tokens and
    cells by that. A task's ``limit`` is then the most prompts that it may get. ``chosen`` is the choice of a run.
    ``timing: off`` decodes without warm-up and shows no seconds, so that the workers of an executor may share a device.
    """

    name: str = "adhoc"
    description: str = ""
    methods: tuple[MethodEntry, ...] = Field(min_length=1)
    backbones: tuple[BackboneEntry, ...] = Field(min_length=1)
    tasks: tuple[TaskEntry, ...] = Field(min_length=1)
    temperature: Annotated[
        tuple[Annotated[float, Field(ge=0, allow_inf_nan=False), WITHOUT_SIGN], ...],
        Field(min_length=1),
        BeforeValidator(listed),
    ] = (0.0,)
    top_k: TopK = 0
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    order: Literal["temperature_first", "filter_first"] = "temperature_first"
    max_new_tokens: int = Field(64, ge=1, le=MOST)
    stop_at_eos: bool = True
    batch: Batch = 1
    repetitions: int = Field(1, ge=1, le=MOST)
    warmup: int = Field(1, ge=0, le=MOST)
    seed: int = 0
    prove: bool = True
    greedy_check: GreedyCheck = Field(default_factory=lambda: GreedyCheck(prompts=2, tokens=32))
    threads: Annotated[Annotated[int, Field(ge=1)] | None, UNLESS_AUTO] = None
    timing: bool = True
    isolation: Literal["process", "none"] | None = None
    sample_limit_s: float | None = Field(600, gt=0, allow_inf_nan=False)
    cell_limit_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    report: Annotated[PaperEntry | None, BY_NAME] = None
    budget: Annotated[float, BeforeValidator(seconds_of)] | None = None
    chosen: Chosen | None = None

    @property
    def top_ks(self) -> tuple[int, ...]:
        """Every top-k of the suite."""
        return (self.top_k,) if isinstance(self.top_k, int) else self.top_k

    @property
    def batches(self) -> tuple[int, ...]:
        """Every batch of the suite: how many prompts are decoded in lock step (`stridebench.harness.core.batch`)."""
        return (self.batch,) if isinstance(self.batch, int) else self.batch

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        """Check entries against the rest of the suite; those of a temperature that an option removed are idle."""
        options = (info.context or {}).get("options", ())
        named = {name for entry in self.backbones for name in (entry.name, plain(entry.name))}
        faults: list[Fault] = []
        for index, method in enumerate(self.methods):
            for at in () if "temperature" in options else method.at or ():
                if at not in self.temperature:
                    faults.append((("methods", index, "at"), f"at {at!r} is not a temperature of the suite"))
            for name in () if "backbones" in options else method.backbones or ():
                if name not in named:
                    faults.append((("methods", index, "backbones"), f"{name!r} is not a backbone of the suite"))
            for name in () if "tasks" in options else method.tasks or ():
                if name not in {task.name for task in self.tasks}:
                    faults.append((("methods", index, "tasks"), f"{name!r} is not a task of the suite"))
        uses: dict[str, TaskUse] = {}
        for index, task in enumerate(self.tasks):
            for use in task.uses:
                if (first := uses.setdefault(use.title, use)) != use:
                    keys = [field.name for field in dataclasses.fields(use)[2:]]
                    differing = ", ".join(key for key in keys if getattr(use, key) != getattr(first, key))
                    text = f"{use.name} is there twice with the same parameters and another {differing}; keep one"
                    faults.append((("tasks", index), text))
        if faults:
            raise faults_error(faults)
        return self


class Objective(Strict):
    """Limits in milliseconds that a request must keep to count as good (goodput)."""

    ttft_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    tpot_ms: float | None = Field(None, gt=0, allow_inf_nan=False)


class Load(Strict):
    """The loads that each engine gets: requests under way at once, and requests a second.

    A list in place of a scalar is a sweep. The arrivals of a rate are those of a Poisson process, drawn from the
    suite's seed and stored with each request.
    """

    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(listed)] = (1,)
    rate: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], BeforeValidator(listed)] = ()
    objective: Objective = Objective(ttft_ms=None, tpot_ms=None)


class EngineSuite(Suite):
    """A suite with engines and methods, or with engines alone.

    ``reference: false`` runs the engines without the backbone's weights, as texts, so that nothing is audited.
    """

    methods: tuple[MethodEntry, ...] = ()
    engines: tuple[EngineEntry, ...] = Field(min_length=1)
    load: Load = Field(default_factory=Load)
    reference: bool = True

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        """Check that labels differ, and that ``plain`` names an entry of the same engine without a ``plain``."""
        uses = [entry.use for entry in self.engines]
        labels, engines = [use.label for use in uses], {use.label: use.name for use in uses if not use.plain}
        faults: list[Fault] = []
        for index, use in enumerate(uses):
            if labels.index(use.label) != index:
                faults.append((("engines", index), f"two engines are called {use.label!r}; give each a label"))
            if use.plain and engines.get(use.plain) != use.name:
                same = [label for label, name in engines.items() if name == use.name]
                hint = did_you_mean(use.plain, same)
                hint = hint or f"; write one of {', '.join(same) or 'none, there is no such entry'}"
                text = f"{use.plain!r} is not an entry of {use.name} without drafts{hint}"
                faults.append((("engines", index, "plain"), text))
        if faults:
            raise faults_error(faults)
        return self


def samplings(suite: Suite, use: TaskUse, backbone: BackboneEntry) -> Iterator[Sampling]:
    """Yield every temperature with every top-k; a task's values replace the suite's, and a backbone's replace both."""
    rest = {"top_p": suite.top_p, "min_p": suite.min_p, "order": suite.order}
    replaced = dict((*use.sampling, *backbone.pairs))
    for temperature in suite.temperature:
        for top_k in suite.top_ks:
            yield Sampling(**{**rest, "temperature": temperature, "top_k": top_k, **replaced})
