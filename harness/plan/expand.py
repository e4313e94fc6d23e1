"""Every combination of methods, backbones, types, tasks, temperatures and batches, as cells with prompts."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import plain
from stridebench.harness.errors import ContractError, DataMissing, StrideError, UsageError, printable_line, said_by
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import BASELINE, MASKED_BASELINE, QUERY_BASELINE, Cell, Plan, modality
from stridebench.harness.plan.compatibility import incompatibility
from stridebench.harness.plan.engine_cells import engine_cells
from stridebench.harness.plan.entries import TaskUse
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.resolve import Resolved
from stridebench.harness.plan.suite import samplings

MOST_CELLS = 100_000
"""More are refused, because planning them takes minutes and running them takes months."""


def expand(resolved: Resolved) -> Plan:
    """Every combination, baselines first. Only prompts are loaded; cells whose prompts are absent are skipped.

    Raises:
        UsageError: prompts are malformed, or there are more cells than `MOST_CELLS`.
    """
    matrix = _Matrix(resolved)
    matrix.refuse_too_many()
    prompts, absent = {}, {}
    for use in resolved.tasks:
        try:
            prompts[use] = _prompts(use)
        except DataMissing as error:
            prompts[use], absent[use] = (), str(error)
    cells: dict[str, Cell] = {}
    dropped = resolved.suite.chosen.dropped if resolved.suite.chosen else {}
    for cell in matrix.combinations():
        skip = matrix.reason(cell) or absent.get(cell.task) or dropped.get(cell.id)
        cells.setdefault(cell.id, replace(cell, skip=skip))
    return Plan(resolved, tuple(cells.values()), prompts, engine_cells(resolved, absent))


def _prompts(use: TaskUse) -> tuple[Prompt, ...]:
    """The prompts of a task, as many as are asked for."""
    name = use.name
    try:
        prompts = use.task.prompts()
    except (StrideError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ContractError(f"the task {name} could not make its prompts: {said_by(error)}") from error
    if not isinstance(prompts, Sequence) or not all(isinstance(prompt, Prompt) for prompt in prompts):
        raise ContractError(f"the task {name} returned {type(prompts).__name__} instead of a sequence of Prompt")
    if unnamed := [prompt for prompt in prompts if not isinstance(prompt.id, str)]:
        raise ContractError(f"the task {name} has a prompt whose id is {unnamed[0].id!r}, not a text")
    for field in ("category", "cluster"):
        if wrong := [prompt for prompt in prompts if not isinstance(getattr(prompt, field), str)]:
            value = getattr(wrong[0], field)
            raise ContractError(f"the task {name}: the {field} of {wrong[0].id} is {value!r}, not a text")
    prompts = [_with_plain_ids(name, prompt) for prompt in prompts]
    prompts = [_in_chat(_shown(prompt)) if use.chat else _shown(prompt) for prompt in prompts]
    if not prompts:
        raise UsageError(f"the task {name} has no prompts; look at its data and its parameters")
    twice = [text for text, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise UsageError(
            f"the task {name} gives one id to several prompts: {', '.join(twice[:3])}; give every prompt another id"
        )
    return tuple(prompts[: use.limit or None])


def _with_plain_ids(task: str, prompt: Prompt) -> Prompt:
    """The prompt with its token ids, which may be of NumPy or torch, as whole numbers."""
    if prompt.tokens is None:
        return prompt
    try:
        tokens = tuple(operator.index(token) for token in prompt.tokens)
    except TypeError as error:
        raise ContractError(f"the task {task}: the tokens of {prompt.id} are not whole numbers: {error}") from error
    if min(tokens, default=0) < 0:
        raise ContractError(f"the task {task}: {prompt.id} has the token {min(tokens)}; ids start at 0")
    return replace(prompt, tokens=tokens)


def _shown(prompt: Prompt) -> Prompt:
    """Return the prompt with escapes for characters that a table, a file name or a tokenizer cannot hold."""
    text = None if prompt.text is None else prompt.text.encode("utf-8", "backslashreplace").decode()
    return replace(
        prompt,
        id=printable_line(prompt.id),
        category=printable_line(prompt.category),
        text=text,
        cluster=printable_line(prompt.cluster),
    )


def _in_chat(prompt: Prompt) -> Prompt:
    """A text as a conversation of one message, which scorers still see as a text; other prompts as they are."""
    if prompt.text is None:
        return prompt
    return replace(prompt, messages=({"role": "user", "content": prompt.text},))


class _Matrix:
    """The combinations of a suite. Each backbone is looked up once, and held against each method once."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._suite = resolved.suite
        self._specs = {entry.name: presets.resolve(entry.name) for entry in resolved.suite.backbones}
        self._lacks: dict[tuple[str, PlannedMethod], str | None] = {}

    def refuse_too_many(self) -> None:
        """Raise UsageError if there would be more than `MOST_CELLS` cells."""
        suite, uses = self._suite, self._resolved.uses
        count, each = 0, len(suite.top_ks) * len(suite.batches)
        for entry in suite.backbones if uses else ():
            tasks = [task.name for task in self._uses(entry.name)]
            for temperature in suite.temperature if count <= MOST_CELLS else ():
                methods = len(tasks) + sum(use.meets(entry.name, temperature, task) for use in uses for task in tasks)
                count += len(entry.dtype) * each * methods
                if count > MOST_CELLS:
                    break
        if count > MOST_CELLS:
            raise UsageError(
                f"the suite {suite.name} has more than {MOST_CELLS:,} cells: {len(uses):,} methods on "
                f"{len(suite.backbones):,} backbones and {len(self._resolved.tasks):,} tasks, with "
                f"{len(suite.temperature):,} temperatures, {len(suite.top_ks):,} values of top_k and "
                f"{len(suite.batches):,} batch sizes; shorten its lists, or split it into several suites"
            )

    def combinations(self) -> Iterator[Cell]:
        """Every cell, baselines first, before it is known which can run."""
        suite = self._suite
        for entry in suite.backbones if self._resolved.uses else ():
            meets = self._specs[entry.name].meets()
            free = QUERY_BASELINE if Requirement.QUERIES in meets else BASELINE
            baseline = PlannedMethod.default(MASKED_BASELINE if Requirement.BIDIRECTIONAL in meets else free)
            for dtype in entry.dtype:
                for task in self._uses(entry.name):
                    for batch, sampling in itertools.product(suite.batches, samplings(suite, task, entry)):
                        stop = suite.stop_at_eos and task.task.eos
                        budget = entry.max_new_tokens or task.max_new_tokens or suite.max_new_tokens
                        first = Cell(baseline, entry.name, dtype, task, sampling, budget, stop, suite.seed, "baseline")
                        first = replace(first, batch=batch)
                        yield first
                        if sampling.temperature > 0:
                            yield replace(first, role="floor")
                        uses = self._resolved.uses
                        at = entry.name, sampling.temperature, task.name
                        methods = (use.planned for use in uses if use.meets(*at))
                        yield from (replace(first, planned=m, role="method") for m in methods if m != baseline)

    def reason(self, cell: Cell) -> str | None:
        """Return why a cell cannot run, as far as this is known without loading, or None if it can."""
        if cell.planned.claim is Claim.SAME_GREEDY and cell.sampling.temperature > 0:
            return "its claim is for T = 0 only"
        spec, pair = self._specs[cell.backbone], (cell.backbone, cell.planned)
        if pair not in self._lacks:
            self._lacks[pair] = incompatibility(cell.planned, spec)
        if missing := self._lacks[pair]:
            return missing
        if not self._fits(cell.task, cell.backbone):
            if cell.task.backbones:
                return f"the suite keeps the task to {', '.join(cell.task.backbones)}"
            return f"the backbone makes {spec.modality()}, and the task scores {cell.task.task.modality}"
        if cell.task.task.modality == "text" and not spec.reads_text():
            return "the backbone has no tokenizer, and the task's prompts are text"
        return None

    def _uses(self, backbone: str) -> Iterator[TaskUse]:
        """The tasks of a backbone: those that name it, and those of its modality that name no backbone.

        Unmatched tasks and backbones are still paired, so that the table shows why they were skipped.
        """
        tasks = self._resolved.tasks
        idle = not any(self._fits(use, backbone) for use in tasks)
        for use in tasks:
            if idle or self._fits(use, backbone) or not any(self._fits(use, name) for name in self._specs):
                yield use

    def _fits(self, use: TaskUse, backbone: str) -> bool:
        """Whether a task is for a backbone: its entry names it, or names none and the modalities match."""
        if use.backbones:
            return backbone in use.backbones or plain(backbone) in use.backbones
        return modality(use.task.modality) == modality(self._specs[backbone].modality())
