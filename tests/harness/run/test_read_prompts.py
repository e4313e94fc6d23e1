"""A long prompt is read once for all checks of its outputs; what is read behind it is as behind one read anew."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.models import Models
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.record.columns import Sample
from stridebench.harness.run import read_prompts, schedule
from stridebench.harness.run.attempt import Attempt
from stridebench.harness.run.read_prompts import ReadPrompts
from tests.support.tiny_text import tiny

PROMPT = Prompt("a", tokens=(*range(1, 21), 3))
SHORT = Prompt("b", tokens=tuple(range(8)))


@pytest.fixture(scope="module")
def model() -> Backbone:
    return tiny()


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass; prompts of 16 tokens and more are long."""
    counts: list[int] = []
    extend = SlotCache.extend

    def counted(cache: SlotCache, window: Window) -> Rows:
        counts.append(len(window.tokens))
        return extend(cache, window)

    monkeypatch.setattr(SlotCache, "extend", counted)
    monkeypatch.setattr(read_prompts, "LONG", 16)
    return counts


def session(model: Backbone, prompt: Prompt = PROMPT, prompts: ReadPrompts | None = None) -> Session:
    new_cache = None if prompts is None else prompts.cache
    return Models(model, lambda name: model, prompt, new_cache=new_cache).target()


def logits(session: Session, output: Sequence[int]) -> Tensor:
    session.prefill()
    return session.forward(Draft(torch.tensor(output)))


def test_each_output_is_read_behind_the_same_entries(model: Backbone, rows_read: list[int]) -> None:
    prompts = ReadPrompts()
    for output in ([4, 5, 6], [7], [4, 5, 9, 2]):
        anew = logits(session(model), output)
        rows_read.clear()
        prompts.begin(PROMPT, PROMPT.tokens or ())
        torch.testing.assert_close(logits(session(model, prompts=prompts), output), anew)
        assert rows_read == ([20] if output == [4, 5, 6] else []) + [len(output) + 1]


def test_hidden_rows_and_a_text_that_goes_on_are_those_of_a_new_cache(model: Backbone, rows_read: list[int]) -> None:
    prompts, longer = ReadPrompts(), Prompt("a", tokens=(*(PROMPT.tokens or ()), 8, 9))
    for _ in range(2):
        prompts.begin(PROMPT, PROMPT.tokens or ())
        anew, again = session(model, longer), session(model, longer, prompts)
        for one in (anew, again):
            one.tap((0, 2))
        torch.testing.assert_close(logits(again, [1, 2]), logits(anew, [1, 2]))
        torch.testing.assert_close(again.hidden, anew.hidden)


def test_two_sessions_of_one_model_share_no_cache(model: Backbone, rows_read: list[int]) -> None:
    prompts = ReadPrompts()
    prompts.begin(PROMPT, PROMPT.tokens or ())
    one, two = session(model, prompts=prompts), session(model, prompts=prompts)
    first = logits(one, [4, 5])
    logits(two, [6, 7, 8])
    torch.testing.assert_close(logits(one, [4, 5]), first)


def test_a_cache_that_lost_entries_of_the_prompt_is_not_lent_again(model: Backbone, rows_read: list[int]) -> None:
    prompts = ReadPrompts()
    prompts.begin(PROMPT, PROMPT.tokens or ())
    damaging = session(model, prompts=prompts)
    logits(damaging, [4])
    damaging.sync([*(PROMPT.tokens or ())[:5], 9, 9, 9])
    logits(damaging, [4])
    prompts.begin(PROMPT, PROMPT.tokens or ())
    torch.testing.assert_close(logits(session(model, prompts=prompts), [4]), logits(session(model), [4]))


def test_another_prompt_and_a_short_one_are_read_anew(model: Backbone, rows_read: list[int]) -> None:
    prompts, other = ReadPrompts(), Prompt("c", tokens=(5, *(PROMPT.tokens or ())[1:]))
    for prompt in (PROMPT, other, PROMPT, SHORT):
        prompts.begin(prompt, prompt.tokens or ())
        torch.testing.assert_close(logits(session(model, prompt, prompts), [4]), logits(session(model, prompt), [4]))
    assert rows_read.count(20) == 6 and rows_read.count(7) == 2


class SelfReferring:
    """As a run is: what it holds waits for a collection."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("tokens", "freed"), [(read_prompts.LONG, True), (read_prompts.LONG - 1, False)])
def test_what_was_decoded_behind_a_long_prompt_is_freed_at_once(
    tokens: int, freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where outputs wait for their baseline, as a decode does not keep its run."""
    runs: list[weakref.ref[SelfReferring]] = []

    def decoded(group: Any, cell: Any, prompt: Prompt, repetition: int, slot: Any, keeps_drafts: bool) -> Attempt:
        runs.append(weakref.ref(SelfReferring()))
        return Attempt(prompt, Sample(prompt.id, repetition, False, "ok", prompt_tokens=tokens))

    monkeypatch.setattr(schedule, "attempt", decoded)
    cell = SimpleNamespace(task="task", batch=1)
    group = SimpleNamespace(plan=SimpleNamespace(prompts={"task": [PROMPT]}), backbone=SimpleNamespace(device="cpu"))
    gc.disable()
    try:
        (attempt,) = schedule.decode_batch(group, cell, [(PROMPT, 0)])  # type: ignore[arg-type]
        assert (runs[0]() is None) is freed and attempt.run is None
    finally:
        gc.enable()
