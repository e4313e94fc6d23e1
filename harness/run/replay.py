"""Scores drafters along stored texts: every position of a text is drafted for, and the text's own token is emitted.

Two runs along the same texts differ in nothing but the change between them, so a small loss of acceptance shows with
few prompts. A decode would go on with other tokens after the first difference.

The value of a position is the mean number of its drafts that the target accepts. A chain of drawn drafts is valued by
its first draft: the sum over tokens of min(p, q), which no draw enters. Other drafts are drawn with the cell's seed,
and valued given the draft.

A method may also say how many steps each of its settings would take along the texts of a baseline (`Method.foresee`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.output import forced_logits
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.clock import Stopwatch, clock_for
from stridebench.harness.core.draft import Acceptance, Draft, ExpectedSteps, Fill, Path
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import begin_method, prefill
from stridebench.harness.core.method import Method, label
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, StrideError, UsageError
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.store import Store
from stridebench.harness.run.attempt import one_line
from stridebench.harness.run.auditing import EARLIER_PROMPTS
from stridebench.harness.run.loading import Options, load_models
from stridebench.harness.run.stored_audit import refuse_other_prompts, stored_plan

POSITIONS = 64
"""Positions of a text that are scored, from its first."""


@dataclass(frozen=True)
class Text:
    """The output ids of one decode, of a prompt's id and a repetition."""

    prompt: str
    repetition: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """A replayed cell.

    Args:
        rows: prompt, repetition, number of positions, and the sum of their values.
        error: why the cell could not be replayed, or None if it was.
    """

    rows: tuple[tuple[str, int, int, float], ...] = ()
    error: str | None = None


def unreplayable(method: Method[Any]) -> str | None:
    """Return why a method's drafts do not follow from the text alone, or None if they do."""
    if {Requirement.ANY_ORDER, Requirement.BIDIRECTIONAL} & method.requirements:
        return "it fills positions in another order"
    if method.remembers:
        return EARLIER_PROMPTS
    if not method.drafters() and not method.components:
        return "it has neither a drafter nor trained components"
    return None


def replay(suite: Mapping[str, Any], texts: Mapping[str, Sequence[Text]], options: Options) -> dict[str, Scores]:
    """Score each cell of a dumped suite along its texts, with the models as they are now."""
    plan = expand(resolve_again(suite))
    cells = {cell.id: cell for cell in plan.cells if cell.id in texts}
    scores = {name: Scores(error="the suite has no such cell any more") for name in texts if name not in cells}
    for group in dict.fromkeys(cell.group for cell in cells.values()):
        members = [cell for cell in cells.values() if cell.group == group]
        options.progress.say(f"replaying {len(members)} cells on {group[0]} in {group[1]}")
        try:
            if options.fetch:
                presets.fetch(group[0], options.progress.say)
            backbone = presets.load(*group, options.device, options.fetch)
        except StrideError as error:
            scores |= {cell.id: Scores(error=str(error)) for cell in members}
            continue
        load_drafter = cache(partial(presets.drafter, backbone, fetch=options.fetch))
        for cell in members:
            prompts = {prompt.id: prompt for prompt in plan.prompts[cell.task]}
            scores[cell.id] = _cell(cell, prompts, texts[cell.id], partial(_models, backbone, load_drafter))
    return scores


def _models(backbone: Any, load_drafter: Any, prompt: Prompt) -> Models:
    return Models(backbone, load_drafter, prompt, Stopwatch(clock_for(backbone.device)), backbone.open(prompt))


def _cell(cell: Cell, prompts: Mapping[str, Prompt], texts: Sequence[Text], models: Any) -> Scores:
    """The scores of a cell; an error of its method ends the cell."""
    if cell.skip or (reason := unreplayable(cell.method)):
        return Scores(error=cell.skip or reason)
    rows = []
    try:
        with torch.inference_mode():
            for text in texts:
                values = replay_text(cell, models(prompts[text.prompt]), text)
                rows.append((text.prompt, text.repetition, len(values), float(sum(values))))
    except KeyError as error:
        return Scores(error=f"the suite has no prompt {error} any more")
    except (Exception, SystemExit) as error:  # a method may raise anything
        return Scores(error=one_line(error))
    return Scores(tuple(rows))


def replay_text(cell: Cell, models: Models, text: Text) -> list[float]:
    """Return the value of each position of a text, or raise ContractError if the method fills a canvas."""
    tokens = text.tokens[:POSITIONS]
    draws = SeededDraws(cell.seed, cell.task.name, text.prompt, text.repetition, models.backbone.device)
    run = Run.of(models, cell.sampling, len(tokens) + 1, draws, stop_at_eos=False)
    prefill(cell.method, run)
    state = begin_method(cell.method, run)
    p = run.probs(forced_logits(models.target(), tokens))
    values = []
    for place, token in enumerate(tokens):
        if run.room <= 1:
            break
        run.draws.emitted = len(run.target)
        result = cell.method.step(run, state)
        if isinstance(result, Fill):
            raise ContractError(f"{type(cell.method).__name__} fills a canvas, which no text replays")
        values.append(_value(run.target.draft, result, p[place]))
        emitted = torch.tensor(token, device=run.target.device)
        run.target.commit(Acceptance(Path.root(p), emitted))
    return values


def _value(draft: Draft, result: Acceptance, p: Float[Tensor, " V"]) -> float:
    """How many drafts of a position are accepted on average; see the module."""
    if draft.parents is None and draft.probs is not None and len(draft.probs):
        return float(torch.minimum(draft.probs[0].double(), p.double()).sum())
    return result.read().expected


@dataclass(frozen=True)
class ForeseenSetting:
    """A setting of a method, along the texts of its baseline.

    Args:
        cell: id of the cell whose drafter it has.
        label: of the setting.
        outputs: its steps by prompt and repetition.
    """

    cell: str
    label: str
    outputs: Mapping[tuple[str, int], ExpectedSteps]


def foresee(store: Store, options: Options) -> list[ForeseenSetting]:
    """Return the settings of each finished cell that its method weighs; one cell for each drafter and baseline.

    Raises:
        UsageError: there is no such cell with a finished baseline.
    """
    plan = stored_plan(store)
    done = {name: meta for name in store.cells() if (meta := store.meta(name)).status == "done"}
    cells: dict[tuple[str | None, tuple[str, ...]], Cell] = {}
    for cell in plan.runnable:
        baseline = done[cell.id].baseline if cell.id in done else None
        if baseline in done and cell.role == "method" and type(cell.method).foresee is not Method.foresee:
            cells.setdefault((baseline, tuple(cell.method.drafters())), cell)
    if not cells:
        raise UsageError(
            f"{store.path} has no finished cell of a method that can be weighed with its baseline; add a cell of "
            f"speculative to the run, such as `--method speculative:drafter=NAME`"
        )
    refuse_other_prompts(plan, store, list(cells.values()))
    settings: list[ForeseenSetting] = []
    with torch.inference_mode():
        for group in dict.fromkeys(cell.group for cell in cells.values()):
            members = {key: cell for key, cell in cells.items() if cell.group == group}
            loaded = load_models(plan, list(members.values()), store, options)
            for (baseline, _), cell in members.items():
                options.progress.say(f"weighing {cell.label}")
                outputs = store.outputs(str(baseline)).items()
                texts = {key: tuple(map(int, tokens)) for key, tokens in outputs if tokens}
                models = partial(_models, loaded.backbone, loaded.load_drafter)
                settings += _foreseen_settings(cell, {one.id: one for one in plan.prompts[cell.task]}, texts, models)
    return settings


def _foreseen_settings(
    cell: Cell, prompts: Mapping[str, Prompt], texts: Mapping[tuple[str, int], tuple[int, ...]], models: Any
) -> list[ForeseenSetting]:
    outputs: dict[Method[Any], dict[tuple[str, int], ExpectedSteps]] = {}
    for (prompt, repetition), tokens in texts.items():
        of_prompt = models(prompts[prompt])
        draws = SeededDraws(cell.seed, cell.task.name, prompt, repetition, of_prompt.backbone.device)
        run = Run.of(of_prompt, cell.sampling, cell.max_new_tokens, draws, stop_at_eos=cell.stop_at_eos)
        prefill(cell.method, run)
        p = run.probs(forced_logits(of_prompt.target(), tokens))
        for setting, steps in cell.method.foresee(run, tokens, p).items():
            outputs.setdefault(setting, {})[prompt, repetition] = steps
    return [ForeseenSetting(cell.id, label(setting), steps) for setting, steps in outputs.items()]
