"""Decoding in lock step: each row of a batch equals the row alone in tokens and counts; a failed row leaves alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import FusedLlama
from stridebench.harness.backbones.slots.guided import GuidedCache
from stridebench.harness.backbones.toy import Tabular, TabularCache
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.batch import Batch, Slot
from stridebench.harness.core.cache import Cache, Rows, Window, extend_all
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import ancestors
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.proof.distance import toy_drafter
from stridebench.harness.registry import METHODS
from tests.power.held_out import SharedBuffer
from tests.support.one_by_one import OneByOne
from tests.support.tiny_mesh import BACKBONES, points
from tests.support.tiny_text import tiny

pytestmark = pytest.mark.usefixtures("unchecked")
TEXT = Tabular("tabular", {"vocabulary": 5, "eos": (4,), "sharpness": 0.7})
PICTURE = Tabular("tabular", {"vocabulary": 5, "grid": (4, 4, 4)})
PROMPTS = ((0, 1, 2), (1,), (2, 2, 0, 1, 3), (3, 0))
CAPTIONS = ((0, 1, 2), (1, 0, 2), (2, 2, 1), (3, 0, 0))
"""Prompts of a picture have one length, because the grid starts after the prompt."""


@dataclass(frozen=True)
class BatchRow:
    """One sequence: cached entries, a token and its draft, the accepted nodes, and the number of rows with logits."""

    cached: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None
    accepted: tuple[int, ...] = ()
    rows: int = 1

    def window(self, base: int) -> Window:
        ids, count = torch.tensor(self.tokens), len(self.tokens)
        if self.parents is None:
            return Window(ids, torch.arange(base, base + count), base, None, self.rows)
        sees = ancestors(torch.tensor([-1, *(parent + 1 for parent in self.parents)]))
        return Window(ids, base + sees.sum(1) - 1, base, sees, self.rows)


@st.composite
def sequences(draw: Any) -> BatchRow:
    ids = st.integers(0, 4)
    cached = draw(st.lists(ids, max_size=12))
    tokens = draw(st.lists(ids, min_size=1, max_size=6))
    parents = tuple(draw(st.integers(-1, k - 1)) for k in range(len(tokens) - 1)) if draw(st.booleans()) else None
    accepted, node = [], draw(st.integers(-1, len(tokens) - 2))
    while node >= 0:
        accepted.insert(0, node)
        node = node - 1 if parents is None else parents[node]
    return BatchRow(tuple(cached), tuple(tokens), parents, tuple(accepted), draw(st.integers(1, len(tokens))))


def read(
    make: Callable[[], Cache], batch_rows: Sequence[BatchRow], extend: Callable[[list[Cache], list[Window]], list[Any]]
) -> list[torch.Tensor]:
    """Logits of a draft and of one more token after its accepted nodes."""
    caches, logits = [make() for _ in batch_rows], []
    prefills = [
        (c, Window(torch.tensor(a.cached), torch.arange(len(a.cached)), 0, None, 0))
        for c, a in zip(caches, batch_rows, strict=True)
        if a.cached
    ]
    extend([cache for cache, _ in prefills], [window for _, window in prefills])
    for turn in range(2):
        windows = []
        for cache, one in zip(caches, batch_rows, strict=True):
            base = len(one.cached)
            if turn:
                cache.keep(base + 1, one.accepted)
                base += 1 + len(one.accepted)
                one = BatchRow((), (one.tokens[0],), None)
            windows.append(one.window(base))
        logits += [rows.logits for rows in extend(caches, windows)]
    return logits


def one_by_one(caches: list[Cache], windows: list[Window]) -> list[Any]:
    return [cache.extend(window) for cache, window in zip(caches, windows, strict=True)]


@given(st.lists(sequences(), min_size=1, max_size=4))
@settings(max_examples=30)
def test_a_tabular_batch_equals_its_single_rows(batch_rows: list[BatchRow]) -> None:
    alone, together = (read(TEXT.cache, batch_rows, extend) for extend in (one_by_one, extend_all))
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


def packed(caches: list[Cache], windows: list[Window]) -> list[Any]:
    """`extend_all`, which must not read two windows of slots one by one."""

    def refuse(kind: type[Cache], caches: list[Cache], windows: list[Window]) -> list[Any]:
        assert len(caches) < 2, "not packed"
        return one_by_one(caches, windows)

    with mock.patch.object(Cache, "extend_many", classmethod(refuse)):
        return extend_all(caches, windows)


LLAMA = tiny(dtype="fp32")


def guided() -> GuidedCache:
    return GuidedCache(LLAMA.cache(), 1, scale=2.5, unconditional=LLAMA.cache(), negative=(3, 1))


@pytest.mark.parametrize("make", [LLAMA.cache, guided], ids=["slots", "guided"])
@given(batch_rows=st.lists(sequences(), min_size=2, max_size=4))
@settings(max_examples=15)
def test_a_packed_batch_equals_its_single_rows(make: Callable[[], Cache], batch_rows: list[BatchRow]) -> None:
    alone, together = (read(make, batch_rows, extend) for extend in (one_by_one, packed))
    for packed_logits, logits in zip(together, alone, strict=True):
        torch.testing.assert_close(packed_logits, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", BACKBONES)
@given(batch_rows=st.lists(sequences(), min_size=2, max_size=4))
@settings(max_examples=8)
def test_meshes_of_different_clouds_are_read_in_one_pass(window: int, batch_rows: list[BatchRow]) -> None:
    def clouds() -> Callable[[], SlotCache]:
        seeds = itertools.count()
        return lambda: BACKBONES[window].bind(points(next(seeds)))

    alone, together = (read(clouds(), batch_rows, extend) for extend in (one_by_one, packed))
    for packed_logits, logits in zip(together, alone, strict=True):
        torch.testing.assert_close(packed_logits, logits, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("make", "branches"), [(LLAMA.cache, 1), (guided, 2)], ids=["slots", "guided"])
def test_a_batch_is_one_pass_over_the_net(make: Callable[[], Cache], branches: int, monkeypatch: Any) -> None:
    """The branches of guidance too; only the prompt of the other branch is read alone."""
    passes: list[int] = []
    packed = FusedLlama.packed
    monkeypatch.setattr(
        FusedLlama, "packed", lambda net, t, p, parts: passes.append(len(parts)) or packed(net, t, p, parts)
    )
    batch_rows = [
        BatchRow((1, 2), (3, 4), None, (0,)),
        BatchRow((), (2,), None),
        BatchRow((1,) * 5, (3, 0, 1), (-1, -1), (1,)),
    ]
    read(make, batch_rows, extend_all)
    assert passes[-2:] == [3 * branches] * 2 and max(passes) == 3 * branches


@pytest.mark.parametrize("make", [LLAMA.cache, guided, TEXT.cache], ids=["slots", "guided", "tabular"])
def test_only_an_unreadable_window_fails(make: Callable[[], Cache]) -> None:
    caches = [make() for _ in range(3)]
    batch_rows = [BatchRow((), (1, 2), None), BatchRow((), (1, -(10**6)), None), BatchRow((), (2,), None)]
    results = extend_all(caches, [one.window(0) for one in batch_rows])
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    for index in (0, 2):
        rows = results[index]
        assert isinstance(rows, Rows)
        torch.testing.assert_close(rows.logits, make().extend(batch_rows[index].window(0)).logits, rtol=0, atol=1e-4)


def test_only_a_window_past_the_context_fails() -> None:
    caches = [LLAMA.cache() for _ in range(2)]
    long, short = BatchRow((), (1,) * 65, None), BatchRow((), (1, 2), None)
    refused, rows = extend_all(caches, [long.window(0), short.window(0)])
    assert "context" in str(refused) and isinstance(rows, Rows)


def decodes(
    method: Method[Any], backbone: Backbone, batch: int, sampling: Sampling, budgets: Sequence[int] = (11, 7, 9, 11)
) -> list[Decode | Exception]:
    """Four prompts with different budgets, so that they end at different steps."""
    prompts = PROMPTS if backbone.capabilities.grid is None else CAPTIONS

    def job(index: int, slot: Slot | None) -> Decode:
        draws = SeededDraws(0, "rows", str(index), 0)
        opener = toy_drafter(backbone) if isinstance(backbone, Tabular) else lambda name: backbone
        prompt = Prompt(str(index), tokens=prompts[index])
        models = Models(backbone, opener, prompt, slot=slot)
        return decode(method, Run.of(models, sampling, budgets[index], draws))

    return Batch[Decode](batch).run([partial(job, index) for index in range(len(prompts))])


def facts(result: Decode | Exception) -> Any:
    """Everything of a decode except its times and the number of rows beside it."""
    assert isinstance(result, Decode), result
    parts = ("wall", "device", "draft", "target", "verify", "host", "wait")
    free = {"served": 1, "switches": 0, **{f"{part}_ns": 0 for part in parts}}
    return result.tokens, [replace(step, **free) for step in result.steps]


NAMED = {
    "autoregressive": {},
    "jacobi": {"window": 4},
    "sjd": {"window": 4},
    "sjdpp": {"window": 4, "reuse": "M"},
    "speculative": {"drafter": "toy", "gamma": 3},
}
SETTINGS = [METHODS.get(name)(**options) for name, options in NAMED.items()]
OTHERS = [METHODS.get(name) for name in METHODS if METHODS.source(name).startswith("methods.") and name not in NAMED]
RUNS = [*itertools.product(SETTINGS, (False, True), (0, 1))]
for other in (kind.variants()[0] for kind in OTHERS):
    of_texts = other.requirements <= TEXT.capabilities.meets
    RUNS += [(other, not of_texts, 1)] if of_texts or other.requirements <= PICTURE.capabilities.meets else []


@pytest.mark.parametrize(("method", "picture", "temperature"), RUNS, ids=str)
def test_rows_of_a_batch_equal_single_decodes(method: Method[Any], picture: bool, temperature: float) -> None:
    """Every registered method, on a canvas too: every token and every count of every step."""
    backbone = PICTURE if picture else TEXT
    budgets = (20, 20, 20, 20) if Requirement.ANY_ORDER in method.requirements else (11, 7, 9, 11)
    alone, batch_outputs = (decodes(method, backbone, batch, Sampling(temperature), budgets) for batch in (1, 4))
    assert list(map(facts, alone)) == list(map(facts, batch_outputs))
    if method in SETTINGS:
        assert list(map(facts, alone)) == list(map(facts, decodes(method, backbone, 2, Sampling(temperature), budgets)))
    steps = [result.steps for result in batch_outputs if isinstance(result, Decode)]
    if all(step.nfe == 1 for row_steps in steps for step in row_steps):
        for row_steps in steps:  # every lock step serves all rows that are not done yet, whatever their drafters did
            assert [step.served for step in row_steps] == [
                sum(len(e) > j for e in steps) for j in range(len(row_steps))
            ]
    assert {step.served for result in alone if isinstance(result, Decode) for step in result.steps} == {1}


@pytest.mark.parametrize("method", SETTINGS[: len(NAMED) - 1], ids=str)
def test_rows_of_a_packed_batch_equal_single_decodes(method: Method[Any]) -> None:
    """In fp64, where packing changes a distribution by 1e-12 at most."""
    model = tiny(dtype="fp64")
    alone, batch_outputs = (decodes(method, model, batch, Sampling(1.0)) for batch in (1, 4))
    assert [facts(result)[0] for result in alone] == [facts(result)[0] for result in batch_outputs]


def test_rows_that_share_a_buffer_are_caught() -> None:
    """The comparison above notices it; in a batch of one the same code is speculative sampling."""
    speculative = METHODS.get("speculative")(drafter="toy", gamma=3)
    alone, batch_outputs, correct = (
        list(map(facts, decodes(method, TEXT, batch, Sampling(1.0))))
        for method, batch in ((SharedBuffer(), 1), (SharedBuffer(), 4), (speculative, 1))
    )
    assert alone == correct != batch_outputs


@dataclass(frozen=True)
class Fragile(OneByOne):
    """Autoregressive; the row of ``PROMPTS[2]`` fails at ``where``."""

    where: str = ""

    def start(self, run: Run) -> None:
        if self.where == "start":
            self.fail(run)

    def step(self, run: Run, state: None) -> Acceptance:
        if self.where == "step" and run.emitted == 3:
            self.fail(run)
        if self.where == "pass" and run.emitted == 3 and run.target.tokens[:5] == list(PROMPTS[2]):
            run.target.append(torch.tensor([-7]))
        return super().step(run, state)

    def fail(self, run: Run) -> None:
        if run.target.tokens[:5] == list(PROMPTS[2]):
            raise RuntimeError("this row alone")


@pytest.mark.parametrize("where", ["start", "step", "pass"])
def test_a_failed_row_leaves_the_batch_and_the_others_continue(where: str) -> None:
    results = decodes(Fragile(where), TEXT, 4, Sampling(1.0))
    sound = decodes(METHODS.get("autoregressive")(), TEXT, 1, Sampling(1.0))
    assert isinstance(results[2], OverflowError if where == "pass" else RuntimeError)
    assert [facts(results[i]) for i in (0, 1, 3)] == [facts(sound[i]) for i in (0, 1, 3)]


def test_no_step_begins_before_all_rows_have_read_their_prompts() -> None:
    events: list[str] = []

    class Logs(OneByOne):
        def start(self, run: Run) -> None:
            events.append("start")

        def step(self, run: Run, state: None) -> Acceptance:
            events.append("step")
            return super().step(run, state)

        def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
            events.append("read")
            return super().token(run, p)

    decodes(Logs(), TEXT, 4, Sampling(0.0), (2,) * 4)
    assert events == ["start"] * 4 + ["step"] * 4 + ["read", "step"] * 4 + ["read"] * 4


def test_an_interrupt_unwinds_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    extend = TabularCache.extend

    def interrupted(cache: TabularCache, window: Window) -> Rows:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return extend(cache, window)

    monkeypatch.setattr(TabularCache, "extend", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        decodes(METHODS.get("autoregressive")(), TEXT, 4, Sampling(1.0))
    assert threading.active_count() == before and calls == 9


def test_a_batch_has_a_row_and_computes_in_the_inference_mode_of_its_caller() -> None:
    with pytest.raises(UsageError, match="whole number from 1"):
        Batch[int](0)
    for mode in (False, True):
        with torch.inference_mode(mode):
            assert Batch[bool](2).run([lambda slot: torch.is_inference_mode_enabled()] * 3) == [mode] * 3
