"""Decoding in lock step: each row of a batch equals the row alone in tokens and counts; a failed row leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backbones.slots.cache import SlotCache
from harness.backbones.slots.fused_llama import FusedLlama
from harness.backbones.slots.guided import GuidedCache
from harness.backbones.toy.tabular import Tabular, TabularCache
from harness.core.backbone import Backbone
from harness.core.batch import Batch, Slot
from harness.core.cache import Cache, Rows, Window, extend_all
from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance
from harness.core.draft import Path as TokenPath
from harness.core.draws import SeededDraws
from harness.core.loop import Decode, decode
from harness.core.method import Method
from harness.core.models import Models
from harness.core.run import Run
from harness.core.sampling import Sampling
from harness.core.session import ancestors
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.plan import suite as suites
from harness.proof.distance import toy_drafter
from harness.record.metrics import METRICS as FIGURES
from harness.record.metrics import totals, value
from harness.record.store import Cell, Store
from harness.registry import METHODS
from methods.drafters.jacobi.refine import Fresh, Refine, redraw
from methods.drafters.jacobi.window import JacobiWindow
from methods.verifiers.rejection import verify_chain
from reports.papers import report as papers
from reports.papers.sjdpp import batch as papers_batch
from reports.summary import summarise
from reports.tables import text_tables
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.runs import by_label, counted, finished, in_parts, plan_of, start
from tests.support.tiny_mesh import BACKBONES, points
from tests.support.tiny_text import tiny

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
def test_a_tabular_batch_is_its_rows_alone(batch_rows: list[BatchRow]) -> None:
    alone, together = (read(TEXT.cache, batch_rows, extend) for extend in (one_by_one, extend_all))
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


def packed(caches: list[Cache], windows: list[Window]) -> list[Any]:
    """`extend_all`, which must not read two windows of slots one by one."""

    def refuse(kind: type[Cache], caches: Sequence[Cache], windows: Sequence[Window]) -> list[Rows]:
        assert len(caches) < 2, "not packed"
        return one_by_one(list(caches), list(windows))

    with mock.patch.object(Cache, "extend_many", classmethod(refuse)):
        return extend_all(caches, windows)


LLAMA = tiny(dtype="fp32")


def guided() -> GuidedCache:
    return GuidedCache(LLAMA.cache(), 1, scale=2.5, unconditional=LLAMA.cache(), negative=(3, 1))


@pytest.mark.parametrize("make", [LLAMA.cache, guided], ids=["slots", "guided"])
@given(batch_rows=st.lists(sequences(), min_size=2, max_size=4))
@settings(max_examples=25)
def test_a_packed_batch_is_its_rows_alone(make: Callable[[], Cache], batch_rows: list[BatchRow]) -> None:
    alone, together = (read(make, batch_rows, extend) for extend in (one_by_one, packed))
    for packed_logits, logits in zip(together, alone, strict=True):
        torch.testing.assert_close(packed_logits, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", BACKBONES)
@given(batch_rows=st.lists(sequences(), min_size=2, max_size=4))
@settings(max_examples=15)
def test_meshes_of_different_clouds_are_read_in_one_pass(window: int, batch_rows: list[BatchRow]) -> None:
    def clouds() -> Callable[[], SlotCache]:
        seeds = count()
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
def test_a_window_that_cannot_be_read_fails_alone(make: Callable[[], Cache]) -> None:
    caches = [make() for _ in range(3)]
    batch_rows = [BatchRow((), (1, 2), None), BatchRow((), (1, -(10**6)), None), BatchRow((), (2,), None)]
    results = extend_all(caches, [one.window(0) for one in batch_rows])
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    for index in (0, 2):
        rows = results[index]
        assert isinstance(rows, Rows)
        torch.testing.assert_close(rows.logits, make().extend(batch_rows[index].window(0)).logits, rtol=0, atol=1e-4)


def test_a_window_past_the_context_fails_alone() -> None:
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
    free = {"served": 1, **{f"{part}_ns": 0 for part in ("wall", "device", "draft", "target", "verify", "host")}}
    return result.tokens, [replace(step, **free) for step in result.steps]


NAMED = {
    "autoregressive": {},
    "jacobi": {"window": 4},
    "sjd": {"window": 4},
    "sjdpp": {"window": 4, "reuse": "M"},
    "speculative": {"drafter": "toy", "gamma": 3},
}
SETTINGS = [METHODS.get(name)(**options) for name, options in NAMED.items()]
SETTINGS += [METHODS.get(name).variants()[0] for name in METHODS if METHODS.source(name).startswith("methods.")]
RUNS = [
    pytest.param(method, backbone, id=f"{METHODS.name_of(type(method))}-{place}-{kind}")
    for place, method in enumerate(SETTINGS)
    for kind, backbone in (("text", TEXT), ("picture", PICTURE))
    if method.requirements <= backbone.capabilities.meets
    and (kind == "text" or place < len(NAMED) or not method.requirements <= TEXT.capabilities.meets)
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "backbone"), RUNS)
def test_rows_of_a_batch_are_the_rows_alone(method: Method[Any], backbone: Tabular, temperature: float) -> None:
    """Every registered method, on a canvas too: every token and every count of every step."""
    budgets = (20, 20, 20, 20) if Requirement.ANY_ORDER in method.requirements else (11, 7, 9, 11)
    alone, batch_outputs, pairs = (
        decodes(method, backbone, batch, Sampling(temperature), budgets) for batch in (1, 4, 2)
    )
    assert list(map(facts, alone)) == list(map(facts, batch_outputs)) == list(map(facts, pairs))
    steps = [result.steps for result in batch_outputs if isinstance(result, Decode)]
    if all(step.nfe == 1 for row_steps in steps for step in row_steps):
        for row_steps in steps:  # every lock step serves all rows that are not done yet, whatever their drafters did
            assert [step.served for step in row_steps] == [
                sum(len(e) > j for e in steps) for j in range(len(row_steps))
            ]
    assert {step.served for result in alone if isinstance(result, Decode) for step in result.steps} == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", SETTINGS[: len(NAMED) - 1], ids=lambda method: METHODS.name_of(type(method)))
def test_rows_of_a_packed_batch_are_the_rows_alone(method: Method[Any], temperature: float) -> None:
    """In fp64, where packing changes a distribution by 1e-12 at most."""
    model = tiny(dtype="fp64")
    alone, batch_outputs = (decodes(method, model, batch, Sampling(temperature)) for batch in (1, 4))
    assert [facts(result)[0] for result in alone] == [facts(result)[0] for result in batch_outputs]


LENGTHS: dict[Slot, int] = {}


@dataclass(frozen=True)
class Minimum(Method[JacobiWindow]):
    """SJD as its released sampler runs a batch: all rows commit as many tokens as the row that accepts least.

    Drafts that a row had accepted beyond that stay, with the distribution that they were drawn from.
    """

    claim = METHODS.get("sjd").claim
    window: int = 4

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - 1, "uniform")

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, draft.probs, p, run.draws)
        own = shortest = len(acceptance.read().path)
        if run.slot is not None:
            LENGTHS[run.slot] = own
            run.slot.ready()
            shortest = min(length for slot, length in LENGTHS.items() if not slot.over)
        if shortest < own:
            nodes = torch.arange(len(draft)).where(torch.arange(len(draft)) < shortest, -1)
            acceptance = Acceptance(TokenPath(nodes, torch.tensor(shortest), torch.tensor(0.0)), draft.tokens[shortest])
        state.advance(run, p, shortest, carried(run, own - shortest - 1))
        return acceptance


def carried(run: Run, surplus: int) -> Refine:
    def refine(x: torch.Tensor, q: torch.Tensor, p: torch.Tensor, first: int) -> Fresh:
        fresh, count = redraw(run.draws)(x, q, p, first), max(0, surplus)
        tokens, probs = torch.cat([x[:count], fresh.tokens[count:]]), torch.cat([q[:count], fresh.probs[count:]])
        return Fresh(tokens, probs, fresh.reused)

    return refine


def test_committing_the_minimum_of_the_batch_is_caught() -> None:
    """The comparison above notices it; in a batch of one the same code is SJD."""
    LENGTHS.clear()
    same = METHODS.get("sjd")(window=4)
    alone, batch_outputs, sjd = (
        decodes(*arguments, Sampling(1.0))
        for arguments in ((Minimum(), TEXT, 1), (Minimum(), TEXT, 4), (same, TEXT, 1))
    )
    assert list(map(facts, alone)) == list(map(facts, sjd))
    assert [facts(result)[0] for result in batch_outputs] != [facts(result)[0] for result in alone]


@dataclass(frozen=True)
class Fragile(Method[None]):
    """Autoregressive; the row of ``PROMPTS[2]`` fails at ``where``."""

    where: str
    claim = METHODS.get("autoregressive").claim

    def start(self, run: Run) -> None:
        if self.where == "start":
            self.fail(run)

    def step(self, run: Run, state: None) -> Acceptance:
        if self.where == "step" and run.emitted == 3:
            self.fail(run)
        if self.where == "pass" and run.emitted == 3 and run.target.tokens[:5] == list(PROMPTS[2]):
            run.target.append(torch.tensor([-7]))
        p = run.probs(run.target.forward())
        return Acceptance(TokenPath.root(p), run.draws.categorical(p, "resid")[0])

    def fail(self, run: Run) -> None:
        if run.target.tokens[:5] == list(PROMPTS[2]):
            raise RuntimeError("this row alone")


@pytest.mark.parametrize("where", ["start", "step", "pass"])
def test_a_failed_row_leaves_the_batch_and_the_others_continue(where: str) -> None:
    results = decodes(Fragile(where), TEXT, 4, Sampling(1.0))
    sound = decodes(METHODS.get("autoregressive")(), TEXT, 1, Sampling(1.0))
    assert isinstance(results[2], OverflowError if where == "pass" else RuntimeError)
    assert [facts(results[i]) for i in (0, 1, 3)] == [facts(sound[i]) for i in (0, 1, 3)]


EVENTS: list[str] = []


@dataclass(frozen=True)
class Logs(Method[None]):
    """Autoregressive; logs its calls."""

    claim = METHODS.get("autoregressive").claim

    def start(self, run: Run) -> None:
        EVENTS.append("start")

    def step(self, run: Run, state: None) -> Acceptance:
        EVENTS.append("step")
        p = run.probs(run.target.forward())
        EVENTS.append("read")
        return Acceptance(TokenPath.root(p), p[0].argmax())


def test_no_step_begins_before_all_rows_have_read_their_prompts() -> None:
    EVENTS.clear()
    decodes(Logs(), TEXT, 4, Sampling(0.0), (2,) * 4)
    assert EVENTS == ["start"] * 4 + ["step"] * 4 + ["read", "step"] * 4 + ["read"] * 4


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


def test_rows_compute_in_the_inference_mode_of_their_caller() -> None:
    for mode in (False, True):
        with torch.inference_mode(mode):
            assert Batch[bool](2).run([lambda slot: torch.is_inference_mode_enabled()] * 3) == [mode] * 3


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_has_at_least_one_row(batch: int) -> None:
    with pytest.raises(UsageError, match="whole number from 1"):
        Batch[int](batch)


@pytest.mark.parametrize("batch", [0, [], [1, 0], "all", 1.5, True])
def test_a_suite_refuses_a_wrong_batch(batch: Any) -> None:
    with pytest.raises(UsageError, match="batch is a whole number from 1, or a list of them to sweep"):
        plan_of(methods=["sjd"], batch=batch)


def test_a_batch_is_in_the_key_and_pairs_with_its_own_baseline() -> None:
    plan = plan_of(methods=["sjd"], batch=[1, 3])
    assert [(c.config["batch"], plan.baseline(c).batch) for c in plan.cells] == [(1, 1), (1, 1), (3, 3), (3, 3)]
    assert [".B3-" in cell.id for cell in plan.cells] == [False, False, True, True]
    assert [c.id for c in plan.cells[:2]] == [c.id for c in plan_of(methods=["sjd"]).cells]
    assert "batch" not in plan_of(methods=["sjd"]).manifest()["key"] and plan.manifest()["key"]["batch"] == (1, 3)


def by_batch(store: Store) -> dict[str, Cell]:
    cells = map(store.cell, store.cells())
    return {f"{c.meta['label']} T={c.meta['sampling']['temperature']:g} B={c.meta['batch']}": c for c in cells}


def table(cell: Cell) -> Any:
    """The records of a cell except its times and the number of rows served together."""
    steps = cell.steps[[name for name in cell.steps if not name.endswith("_ns") and name != "served"]]
    steps = steps.assign(ranks=steps["ranks"].map(list), energies=steps["energies"].map(list))
    order = ["prompt", "repetition", "step"]
    texts = cell.samples[["prompt", "repetition", "status", "tokens", "agreement", "sha256"]].astype(str)
    counted_rows = ~cell.samples["warmup"].astype(bool)
    return (
        texts[counted_rows].sort_values(order[:2]).values.tolist(),
        steps[~steps["warmup"].astype(bool)].sort_values(order).values.tolist(),
    )


def test_a_sweep_runs_the_same_decodes_at_every_batch(tmp_path: Path) -> None:
    """8 prompts: batches of 3 end with one of 2, and one of 16 holds all."""
    finished(tmp_path / "run", methods=["sjd", "speculative"], temperature=1, batch=[1, 3, 16])
    cells = by_batch(Store.open(tmp_path / "run"))
    assert len(cells) == 3 * 4
    for name, cell in cells.items():
        alone = cells[name.rpartition("=")[0] + "=1"]
        assert table(cell) == table(alone), name
        assert len(counted(cell)) == cell.meta["expected"] == 8
    steps = cells["autoregressive T=1 B=3"].steps
    most = steps[~steps["warmup"].astype(bool)].groupby("prompt")["served"].max()
    assert most.to_dict() == {f"tabular/{i}": 3 if i < 6 else 2 for i in range(8)}
    assert cells["sjd T=1 B=16"].steps["served"].max() == 8
    assert set(cells["sjd T=1 B=1"].steps["served"]) == {1}


def test_a_resumed_batch_ends_with_the_counts_of_an_uninterrupted_one(tmp_path: Path) -> None:
    data: dict[str, Any] = {"methods": ["sjd", "speculative"], "batch": 3}
    finished(tmp_path / "whole", **data)
    uninterrupted = by_label(Store.open(tmp_path / "whole"))
    plan = plan_of(**data)
    store = start(tmp_path / "parts", plan)

    in_parts(plan, store, (1, 5, 9))
    parts = by_label(store)
    assert parts.keys() == uninterrupted.keys()
    assert all(table(parts[name]) == table(uninterrupted[name]) for name in uninterrupted)


def test_one_bad_prompt_is_one_failed_row_of_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sjd = METHODS.get("sjd")
    sound = sjd.step

    def step(self: Any, run: Run, state: JacobiWindow) -> Acceptance:
        if run.draws._root.split("|")[2] == "tabular/1" and run.emitted > 1:  # type: ignore[attr-defined]
            raise RuntimeError("that prompt")
        return sound(self, run, state)

    monkeypatch.setattr(sjd, "step", step)
    rows = counted(finished(tmp_path / "run", methods=["sjd"], batch=4, warmup=0)["sjd T=0"])
    assert rows["status"].to_dict() == {f"tabular/{i}": "failed" if i == 1 else "ok" for i in range(8)}
    assert "RuntimeError: that prompt" in rows.loc["tabular/1", "error"]


def test_greedy_equality_of_a_batch_is_checked_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    many = SlotCache.extend_many.__func__  # type: ignore[attr-defined]
    spy = classmethod(lambda cls, caches, windows: sizes.append(len(caches)) or many(cls, caches, windows))
    monkeypatch.setattr(SlotCache, "extend_many", spy)
    tasks = [{"name": "tabular", "limit": 2}]
    data: dict[str, Any] = {"backbones": ["random-llama-1m"], "tasks": tasks, "prove": True, "max_new_tokens": 4}
    data |= {"methods": ["autoregressive"], "greedy_check": {"prompts": 2, "tokens": 4}, "warmup": 0}
    cells = finished(tmp_path / "run", batch=2, **data)
    assert cells["autoregressive T=0"].meta["verdict"]["greedy"].startswith("2/2 equal")
    assert sizes == [2] * len(sizes) and len(sizes) > 2 * 4  # the run's own decodes, then those of the check


def test_the_batch_suite_sweeps_batches_of_the_jacobi_family() -> None:
    batch_suite = suites.load("papers/sjdpp_batch").suite
    assert batch_suite.batches == (1, 2, 4, 8) and [entry.name for entry in batch_suite.backbones] == ["embedded-image"]


def swept(name: str = "papers/sjdpp_batch") -> FakeStore:
    """Batches of 1 and 2, four prompts: AR of four steps of 10 ms, SJD of two of 12 ms; in a batch of two, twice that.

    Every other row of a batch takes one step more, alone.
    """
    store = empty()
    store.manifest["suite"] = {"name": name}
    for batch in (1, 2):
        for label, ms, accepted in (("autoregressive", 10.0, (0,) * 4), ("sjd", 12.0, (1, 1))):
            records = []
            for place in range(4):
                cost = ms if batch == 1 else (20.0 if label == "autoregressive" else 36.0)
                steps = [step(one, one, ms=cost, served=batch) for one in accepted]
                late = [step(0, 0, ms=ms, served=1)] if place % 2 else []
                records.append(record(f"p{place}", [*steps, *late], agreement=None))
            role = "baseline" if label == "autoregressive" else "method"
            same = {
                "role": role,
                "label": label,
                "method": label,
                "batch": batch,
                "baseline": f"autoregressive-{batch}",
            }
            store.add(meta(f"{label}-{batch}", **same), records)
    return store


def test_throughput_shares_a_lock_step_among_its_rows() -> None:
    """18 tokens: two batches of two take 2 x (2 x 36 + 12) ms, the rows alone 4 x 24 + 2 x 12 ms."""
    rates = {}
    for batch in (1, 2):
        cell = swept().cell(f"sjd-{batch}")
        rates[batch] = value(FIGURES["throughput"], totals(cell.samples, cell.steps))
    assert rates == {1: pytest.approx(18 / 0.120), 2: pytest.approx(18 / 0.168)}


def test_runs_older_than_batches_share_no_time() -> None:
    cell = swept().cell("sjd-1")
    assert value(FIGURES["throughput"], totals(cell.samples, cell.steps.drop(columns="served"))) == pytest.approx(150)


def test_a_table_has_a_column_for_the_batch_only_where_it_differs() -> None:
    frame = summarise(swept())  # type: ignore[arg-type]  # what reports read of a store
    (sweep,), (one,), (two,) = (list(text_tables(rows)) for rows in (frame, frame[:2], frame[2:]))
    titles = [[column.title for column in sheet.columns] for sheet in (sweep, one, two)]
    assert [("B" in column_titles, "tokens/s of the batch" in column_titles) for column_titles in titles] == [
        (True, True),
        (False, False),
        (False, True),
    ]
    assert [sheet.title.rpartition(", ")[2] for sheet in (sweep, one, two)] == ["64 tokens", "batch 1", "batch 2"]
    assert [row[titles[0].index("B")] for row in sweep.rows] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    ("speedups", "end"),
    [
        ((2.0, 1.5, 1.2, 0.8), 2**2.5),
        ((2.0, 1.5, 1.2, 1.1), None),
        ((0.9, 0.8, 0.7, 0.6), 1.0),
        ((1.2, 0.9, 1.2, 0.8), 2**2.5),
        ((1.2, 1.1, 1.0, 0.8), 4.0),
    ],
)
def test_a_speed_up_ends_where_it_last_crosses_one(speedups: tuple[float, ...], end: float | None) -> None:
    assert papers_batch.break_even((1, 2, 4, 8), speedups) == (None if end is None else pytest.approx(end))


def test_the_sweeps_report_agrees_with_the_store(tmp_path: Path) -> None:
    written = {path.name for path in papers.write(swept(), tmp_path)}  # type: ignore[arg-type]  # as above
    assert written == {"papers.md", "papers-sjdpp_batch.csv", "papers-batch.png"}
    rows = pd.read_csv(tmp_path / "papers-sjdpp_batch.csv", dtype=str).set_index(["cell", "B"])
    rates = rows["tokens/s of the batch"].map(lambda text: float(text.split()[0]))
    assert rates.to_dict() == {
        ("autoregressive", "1"): 100.0,
        ("autoregressive", "2"): 100.0,
        ("sjd", "1"): 150.0,
        ("sjd", "2"): 107.1,
    }
    gains = rows["speed-up over AR at B"].map(lambda text: float(text.split()[0]))
    assert gains[("sjd", "1")] == 1.53 and gains[("sjd", "2")] == 1.09
    assert rows.loc[("sjd", "2"), "break-even B"] == "none up to 2"
