"""The loop on scripted methods whose every step can be counted by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core import loop
from stridebench.harness.core.cache import Window
from stridebench.harness.core.clock import CpuClock, Event, EventClock, Stamp, Stopwatch
from stridebench.harness.core.draft import Acceptance, Draft, HostAcceptance, Path
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode, truncate
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.step_rows import PassTally, accepted_ranks
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError
from stridebench.harness.machine.noise import Waited
from stridebench.harness.record.columns import check
from tests.support.one_by_one import OneByOne

V = 6


@dataclass(frozen=True)
class Act:
    """One scripted step: the draft, the accepted nodes and the token after them."""

    token: int
    drafted: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    reused: tuple[bool, ...] | None = None
    passes: int = 1
    drafter_before: int = 0
    drafter_after: int = 0
    passed: bool | None = None


@dataclass(frozen=True)
class Scripted(Method[Iterator[Act]]):
    """Follows its script, whatever the target's distribution is."""

    acts: tuple[Act, ...]

    claim = Claim.APPROXIMATE
    source = "this test"

    def start(self, run: Run) -> Iterator[Act]:
        return iter(self.acts)

    def step(self, run: Run, state: Iterator[Act]) -> Acceptance:
        act = next(state)
        drafter = run.open("toy") if act.drafter_before or act.drafter_after else None
        for _ in range(act.drafter_before):
            assert drafter is not None
            drafter.forward()
        draft = Draft(
            torch.tensor(act.drafted, dtype=torch.long),
            parents=None if act.parents is None else torch.tensor(act.parents, dtype=torch.long),
            reused=None if act.reused is None else torch.tensor(act.reused),
        )
        for _ in range(act.passes):
            run.target.forward(draft)
        for _ in range(act.drafter_after):
            assert drafter is not None
            drafter.forward()
        nodes = torch.tensor([*act.path, *[-1] * (len(draft) - len(act.path))], dtype=torch.long)
        stop = torch.tensor(act.path[-1] + 1 if act.path else 0)
        expected = torch.tensor(0.5 * len(draft), dtype=torch.float64)
        passed = None if act.passed is None else torch.tensor(act.passed)
        return Acceptance(Path(nodes, stop, expected), torch.tensor(act.token), passed=passed)


def play(
    *acts: Act,
    budget: int = 10,
    eos: Sequence[int] = (),
    context: int = 64,
    prompt: Sequence[int] = (0, 1),
    stopwatch: Stopwatch | None = None,
    stop: Callable[[Sequence[int], Sequence[int]], int | None] | None = None,
    **more: bool,
) -> Decode:
    model = Tabular("tabular", {"vocabulary": V, "eos": eos, "context": context})
    draws = SeededDraws(0, "t", "p", 0)
    opener = lambda name: model.variant({"drafter": name})  # noqa: E731  # shorter than a function here
    run = Run.of(Models(model, opener, prompt, stopwatch), Sampling(1.0), budget, draws)
    return decode(Scripted(acts), replace(run, stop=stop), **more)


COUNTS = (
    "nfe",
    "draft_nfe",
    "rows",
    "drafted",
    "tested",
    "accepted",
    "expected",
    "emitted",
    "forced",
    "overshoot",
    "reused",
)


def counts(result: Decode) -> list[tuple[Any, ...]]:
    return [tuple(getattr(step, name) for name in COUNTS) for step in result.steps]


class TestCounts:
    def test_a_trace_counted_by_hand(self) -> None:
        result = play(
            Act(2),
            Act(3, drafted=(4, 5, 4), path=(0, 1)),
            Act(1, drafted=(2, 2), path=(), reused=(True, True)),
            Act(0, drafted=(5, 3), path=(0, 1), reused=(True, False)),
            budget=8,
        )
        assert result.tokens == (2, 4, 5, 3, 1, 5, 3, 0)
        # the order of COUNTS; rows: the last token fed again and the draft
        assert counts(result) == [
            (1, 0, 1, 0, 0, 0, 0.0, 1, 0, 0, 0),
            (1, 0, 4, 3, 3, 2, 1.5, 3, 0, 0, 0),
            (1, 0, 3, 2, 1, 0, 1.0, 1, 0, 0, 2),
            (1, 0, 3, 2, 2, 2, 1.0, 3, 0, 0, 1),
        ]
        check(result.steps, len(result.tokens))

    def test_drafter_passes_are_counted_separately(self) -> None:
        result = play(Act(2, drafter_before=2, drafter_after=1), Act(2), budget=2)
        assert [(step.nfe, step.draft_nfe) for step in result.steps] == [(1, 3), (1, 0)]

    def test_drafts_of_steps_that_are_powers_of_two_are_kept_if_they_are_asked_for(self) -> None:
        acts = [Act(2, drafted=(k % V,)) for k in range(10)]
        assert play(*acts).drafts == ()
        kept = play(*acts, keeps_drafts=True).drafts
        assert [(one.first - 2, one.draft.tokens.tolist()) for one in kept] == [(k, [k % V]) for k in (1, 2, 4, 8)]

    def test_the_prefill_is_no_pass_and_no_row(self) -> None:
        result = play(Act(2), budget=1, prompt=[0, 1, 2, 3, 4])
        assert (result.steps[0].nfe, result.steps[0].rows) == (1, 1)
        assert result.prefill_ns > 0

    @pytest.mark.parametrize(
        ("parents", "path", "tested"),
        [((-1, -1, 0, 0), (0,), 2), ((-1, -1), (), 1), ((-1, -1, 0, 0), (0, 3), 2)],  # the last one ends at a leaf
    )
    def test_a_tree_counts_the_level_where_it_stopped(
        self, parents: tuple[int, ...], path: tuple[int, ...], tested: int
    ) -> None:
        tree = Act(2, drafted=(1, 2, 3, 4)[: len(parents)], parents=parents, path=path)
        first = play(tree, budget=len(path) + 1).steps[0]
        assert (first.drafted, first.tested, first.accepted) == (len(parents), tested, len(path))
        assert first.emitted == len(path) + 1

    @pytest.mark.parametrize(
        ("path", "passed", "drafted", "tested", "accepted"),
        [
            ((0, 1), None, 2, 2, 2),
            ((0, 1), True, 3, 3, 3),
            ((0, 1), False, 3, 3, 2),
            ((0,), False, 2, 2, 1),
            ((), None, 2, 1, 0),
        ],
    )
    def test_a_draft_that_no_pass_has_read_counts_where_it_was_tested(
        self, path: tuple[int, ...], passed: bool | None, drafted: int, tested: int, accepted: int
    ) -> None:
        step = play(Act(3, drafted=(1, 2), path=path, passed=passed), budget=len(path) + 1).steps[0]
        assert (step.drafted, step.tested, step.accepted) == (drafted, tested, accepted)
        assert (step.levels, step.levels_built, step.emitted) == (drafted, drafted, len(path) + 1)


class TestStop:
    @pytest.mark.parametrize(
        ("acts", "settings", "tokens", "overshoot"),
        [
            ([Act(2), Act(5)], {"eos": [5]}, (2, 5), [0, 0]),
            ([Act(2), Act(3, drafted=(1, 5, 4, 4), path=(0, 1, 2, 3))], {"eos": [5]}, (2, 1, 5), [0, 3]),
            ([Act(5), Act(5), Act(2)], {"budget": 3}, (5, 5, 2), [0, 0, 0]),
            ([Act(2), Act(3, drafted=(1, 2, 4), path=(0, 1, 2))], {"budget": 3}, (2, 1, 2), [0, 2]),
            ([Act(5, drafted=(1,), path=(0,))], {"budget": 1, "eos": [5]}, (1,), [1]),
            ([], {"budget": 0}, (), []),
            ([Act(1), Act(2), Act(3), Act(4)], {"context": 5}, (1, 2, 3), [0, 0, 0]),
        ],
        ids=["end", "end inside a path", "no end", "budget", "end behind the budget", "no budget", "context"],
    )
    def test_a_text_ends_with_its_end_the_budget_or_the_context(
        self, acts: list[Act], settings: dict[str, Any], tokens: tuple[int, ...], overshoot: list[int]
    ) -> None:
        """The end of text is part of the output; the rest of its step is overshoot."""
        result = play(*acts, **settings)
        assert result.tokens == tokens
        assert [step.overshoot for step in result.steps] == overshoot
        assert [step.emitted for step in result.steps] == [1 + len(act.path) for act in acts[: len(overshoot)]]
        check(result.steps, len(tokens))

    @pytest.mark.parametrize("kept", [1, 2, 3])
    def test_a_stop_text_ends_the_output_within_a_step(self, kept: int) -> None:
        asked: list[tuple[list[int], list[int]]] = []

        def stop(tokens: Sequence[int], emitted: Sequence[int]) -> int | None:
            asked.append((list(tokens), list(emitted)))
            return kept if len(asked) == 2 else None

        result = play(Act(2), Act(3, drafted=(1, 4), path=(0, 1)), Act(0), stop=stop)
        assert asked == [([], [2]), ([2], [1, 4, 3])]
        assert result.tokens == (2, 1, 4, 3)[: 1 + kept] and result.steps[-1].overshoot == 3 - kept

    def test_a_draft_past_the_context_is_a_contract_error(self) -> None:
        with pytest.raises(ContractError, match=r"run\.room"):
            play(Act(1, drafted=(0,) * 5), context=6)

    @pytest.mark.parametrize(
        ("emitted", "room", "output", "ended"),
        [
            ((1, 2), 5, (1, 2), False),
            ((1, 2), 1, (1,), False),
            ((1, 9, 2), 5, (1, 9), True),
            ((1, 9, 2), 2, (1, 9), True),
            ((1, 9, 2), 1, (1,), False),
            ((9, 9), 5, (9,), True),
            ((), 5, (), False),
        ],
    )
    def test_truncate(self, emitted: tuple[int, ...], room: int, output: tuple[int, ...], ended: bool) -> None:
        assert truncate(emitted, room, frozenset({9})) == (output, ended)


class TestBrokenMethods:
    @pytest.mark.parametrize(
        ("acts", "message"),
        [
            ([Act(1, passes=0)], r"Scripted\.step made no target pass"),
            ([Act(1), Act(1, passes=0)], "made no target pass"),
            ([Act(-1)], f"outside the vocabulary of {V}"),
            ([Act(V)], f"outside the vocabulary of {V}"),
            ([Act(1, drafted=(V,), path=(0,))], "outside the vocabulary"),
        ],
    )
    def test_a_step_without_a_pass_or_with_unknown_tokens_is_refused(self, acts: list[Act], message: str) -> None:
        with pytest.raises(ContractError, match=message):
            play(*acts)

    def test_inconsistent_counts_are_refused(self) -> None:
        steps = play(Act(1), Act(2, drafted=(3, 3), path=(0,)), budget=3).steps
        check(steps, 3)
        with pytest.raises(ContractError, match="not the output's 4"):
            check(steps, 4)
        for broken in ({"accepted": 3}, {"tested": 0}, {"tested": 3}, {"accepted": -1, "emitted": 0}):
            bad = [steps[0], replace(steps[1], **{"overshoot": 0, **broken})]
            with pytest.raises(ContractError):
                check(bad, sum(step.emitted for step in bad))


class FakeDevice:
    """Each event comes a millisecond after the one before, and none can be read unfinished."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def event(self) -> Event:
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.log.append("synchronize")


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.at = -1

    def record(self) -> None:
        self.device.now += 1
        self.at = self.device.now
        self.device.log.append("record")

    def elapsed_time(self, end: FakeEvent) -> float:
        assert "synchronize" in self.device.log, "an event was read before the device had finished"
        self.device.log.append("read")
        return float(end.at - self.at)


class StoppedOnce(CpuClock):
    """Each stamp comes a millisecond after the one before; at one of them the process was stopped for three seconds.

    It is the noise meter as well, which sees the stop.
    """

    def __init__(self, at: int, idle_ms: int = 3000) -> None:
        self.stamps, self.now, self.at, self.idle, self.idle_ms = 0, 0, at, 0, idle_ms

    def stamp(self) -> Stamp:
        self.idle += self.idle_ms * MS * (self.stamps == self.at)
        self.now += MS + 3000 * MS * (self.stamps == self.at)
        self.stamps += 1
        return Stamp(self.now)

    def read(self) -> Waited:
        idle, self.idle = self.idle, 0
        return Waited(0, 0, idle_ns=idle)

    def close(self) -> None:
        return None


def test_a_process_that_is_stopped_anywhere_in_a_step_changes_no_time_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(at: int) -> tuple[list[dict[str, Any]], StoppedOnce]:
        clock = StoppedOnce(at)
        monkeypatch.setattr(loop, "NoiseMeter", lambda **_: clock)
        acts = (Act(1), Act(2, drafted=(3,), path=(0,), drafter_before=2), Act(1, drafter_after=1))
        return [vars(step) for step in play(*acts, budget=4, stopwatch=Stopwatch(clock)).steps], clock

    quiet, clock = played(-1)
    stops = []
    for at in range(clock.stamps):
        steps, _ = played(at)
        stops.append([step["stopped_ns"] for step in steps])
        assert [step | {"stopped_ns": 0} for step in steps] == quiet
    assert {max(stop) for stop in stops} == {0, 3000 * MS}
    assert all(any(stop[step] for stop in stops) for step in range(3))


def test_a_stop_that_another_clock_measured_as_longer_than_the_step_leaves_no_negative_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for at in range(12):
        clock = StoppedOnce(at, idle_ms=3500)
        monkeypatch.setattr(loop, "NoiseMeter", lambda clock=clock, **_: clock)
        for step in play(Act(1), Act(1), Act(1), budget=3, stopwatch=Stopwatch(clock)).steps:
            assert min(step.draft_ns, step.target_ns, step.verify_ns, step.host_ns, step.wall_ns) >= 0


MS = 1_000_000
OPENED = 4
"""Stamps of a drafter that is opened: it is loaded, and reads the prompt."""


class TestStamps:
    """A step's stamps: begin, then begin and end of each pass, then end; a millisecond apart."""

    def played(self, *acts: Act, budget: int) -> tuple[Decode, FakeDevice]:
        device = FakeDevice()
        clock = EventClock(device.event, device.synchronize)
        return play(*acts, budget=budget, stopwatch=Stopwatch(clock)), device

    def test_nothing_waits_between_the_prefill_and_the_end_of_the_decode(self) -> None:
        _, device = self.played(Act(1), Act(2, drafted=(3,), path=(0,), drafter_before=2), budget=3)
        prefill, start, last = (at for at, entry in enumerate(device.log) if entry == "synchronize")
        assert device.log[:prefill] == ["record"] * 3  # the decode begins; the prompt is read
        assert device.log[prefill + 1 : start] == ["record"]
        assert set(device.log[start + 1 : last]) == {"record"}
        assert set(device.log[last + 1 :]) == {"read"}

    @pytest.mark.parametrize(
        ("act", "device_ms", "parts_ms"),
        [
            (Act(1), 3, (0, 1, 1)),
            (Act(1, drafter_before=2), 7 + OPENED, (2, 1, 1)),
            (Act(1, drafter_after=1), 5 + OPENED, (1, 1, 2)),  # drafting, not verifying
            (Act(1, passes=2), 5, (0, 2, 1)),
        ],
        ids=["plain", "drafter before", "drafter after", "two passes"],
    )
    def test_a_step_is_divided_into_drafts_passes_and_verification(
        self, act: Act, device_ms: int, parts_ms: tuple[int, int, int]
    ) -> None:
        result, _ = self.played(Act(0), act, budget=2)
        step = result.steps[1]
        assert (step.nfe, step.device_ns) == (act.passes, device_ms * MS)
        assert (step.draft_ns, step.target_ns, step.verify_ns) == tuple(part * MS for part in parts_ms)

    def test_on_a_cpu_the_spans_sum_to_the_wall_time(self) -> None:
        for step in play(Act(0), Act(1, drafter_before=2), Act(2, drafter_after=1), budget=3).steps:
            assert step.device_ns == step.wall_ns
            parts = step.draft_ns + step.target_ns + step.verify_ns + step.host_ns
            assert parts == step.wall_ns
            assert min(step.draft_ns, step.target_ns, step.verify_ns, step.host_ns) >= 0


@dataclass(frozen=True)
class DecodesInStart(Method[list[int]]):
    """Decodes the text before its first step, then drafts what it knows already; T = 0."""

    model: str = ""

    claim = Claim.SAME_LAW
    source = "this test"

    def start(self, run: Run) -> list[int]:
        session = run.open(self.model) if self.model else run.target
        first = len(session)
        for _ in range(run.budget):
            session.append(session.forward()[0].argmax()[None])
        text = session.tokens[first:]
        session.sync(session.tokens[:first])
        return text

    def step(self, run: Run, state: list[int]) -> Acceptance:
        tokens = torch.tensor(state[: run.room - 1])
        last = run.target.forward(Draft(tokens))[-1].argmax()
        nodes = torch.arange(len(tokens))
        return Acceptance(Path(nodes, torch.tensor(len(tokens)), torch.tensor(float(len(tokens)))), last)


@dataclass(frozen=True)
class Hidden(OneByOne):
    """Decodes autoregressively and, before each pass, does more in ways that no session counts; T = 0.

    Args:
        way: a model that makes a pass, a pass beside the session, or a function of the run.
    """

    way: str | Callable[[Run], object] = ""

    def step(self, run: Run, state: None) -> Acceptance:
        self.way(run) if callable(self.way) else self.hide(run)
        return super().step(run, state)

    def hide(self, run: Run) -> None:
        token = torch.zeros(1, dtype=torch.long)
        if self.way == "cache":
            length = len(run.target._cache.entries)
            run.target._cache.extend(Window(token, torch.tensor([length]), length, None, 1))
            run.target._cache.keep(length)
        elif self.way == "rows":  # entries beyond the prompt, whose hidden rows would give logits
            run.target.append(token)
            run.target.prefill()
            run.target.sync(run.target.tokens[:-1])
        elif self.way == "session":  # another cache, which reads a prompt that the target has read already
            run.models.target().prefill()
        else:
            run.open(str(self.way)).forward()


@dataclass(frozen=True)
class Steps(OneByOne):
    """Its step is a function of the run."""

    taken: Callable[[Run], Any] = print

    def step(self, run: Run, state: None) -> Acceptance:
        result: Acceptance = self.taken(run)
        return result


@dataclass(frozen=True)
class Expecting(OneByOne):
    """Drafts one token, perhaps one more that no pass reads, and says how many it expects to keep."""

    expected: float = 0.0
    passed: bool | None = None

    claim = Claim.APPROXIMATE

    def step(self, run: Run, state: None) -> Acceptance:
        run.target.forward(Draft(torch.tensor([1])))
        path = Path(torch.tensor([0]), torch.tensor(1), torch.tensor(self.expected))
        return Acceptance(path, torch.tensor(2), passed=None if self.passed is None else torch.tensor(self.passed))


class TestExpected:
    @pytest.mark.parametrize(
        ("expected", "passed", "most"),
        [(17.3, None, 1), (1.1, None, 1), (-0.1, None, 1), (math.nan, None, 1), (math.inf, None, 1), (2.1, False, 2)],
    )
    def test_more_than_the_drafts_cannot_be_expected(self, expected: float, passed: bool | None, most: int) -> None:
        with pytest.raises(ContractError, match=rf"expects .* accepted drafts of {most}"):
            greedy(Expecting(expected, passed), 2)

    @pytest.mark.parametrize(
        ("expected", "passed"), [(0.0, None), (0.3, None), (1.0, None), (2.0, True), (1.9, False), (0.0, True)]
    )
    def test_up_to_all_drafts_can_be_expected(self, expected: float, passed: bool | None) -> None:
        assert greedy(Expecting(expected, passed), 2).steps[0].expected == pytest.approx(expected)


def greedy(method: Method[Any], budget: int, stopwatch: Stopwatch | None = None) -> Decode:
    model = Tabular("tabular", {"vocabulary": V})
    opener = lambda name: model if name == "self" else model.variant({"drafter": name})  # noqa: E731  # as above
    models = Models(model, opener, (0, 1), stopwatch)
    return decode(method, Run.of(models, Sampling(0.0), budget, SeededDraws(0, "t", "p", 0)))


class TestRunBelongsToTheLoop:
    """A method that ends texts earlier, or draws otherwise, is not held against what the run asks for."""

    @pytest.mark.parametrize("name", ["target", "budget", "emitted", "eos", "sampling", "memo", "target.draft"])
    def test_a_method_cannot_write_to_it(self, name: str) -> None:
        *owner, field = name.split(".")

        def write(run: Run) -> None:
            setattr(run.target if owner else run, field, None)

        with pytest.raises((FrozenInstanceError, AttributeError), match=field):
            greedy(Hidden(write), 4)

    def test_a_pass_has_the_threads_of_the_run(self) -> None:
        before = torch.get_num_threads()

        def takes_threads(run: Run) -> None:
            torch.set_num_threads(before + 1)
            try:
                run.target.forward()
            finally:
                torch.set_num_threads(before)

        with pytest.raises(ContractError, match=f"a pass has {before + 1} threads and the run {before}"):
            greedy(Hidden(takes_threads), 4)

    def test_no_stage_is_named_as_the_passes_of_the_target(self) -> None:
        with pytest.raises(ContractError, match="a stage is named target"):
            greedy(Hidden(lambda run: run.timed(int, "target")()), 4)

    def test_the_answers_of_a_prompt_are_not_there(self) -> None:
        model = Tabular("tabular", {"vocabulary": V})
        models = Models(model, lambda name: model, Prompt("a", tokens=(0, 1), data={"answer": "42"}))
        assert not vars(models)["_prompt"].data

    def test_a_step_returns_an_acceptance_or_a_fill(self) -> None:
        with pytest.raises(ContractError, match=r"Steps\.step returned a Tensor; return an Acceptance, or a Fill"):
            greedy(Steps(lambda run: run.target.forward()), 2)

    def test_a_draft_that_shrinks_once_it_is_scored_is_refused(self) -> None:
        def shrinks(run: Run) -> Acceptance:
            draft = Draft(torch.tensor([1, 2]))
            logits = run.target.forward(draft)
            draft.tokens.resize_(0)
            return Acceptance(Path.root(logits), torch.tensor(2))

        with pytest.raises(ContractError, match="scored a draft of 2 tokens, which has 0 now"):
            greedy(Steps(shrinks), 4)

    def test_the_tokens_that_were_scored_are_emitted(self) -> None:
        def rewrites(run: Run) -> Acceptance:
            draft = Draft(torch.tensor([1]))
            run.target.forward(draft)
            draft.tokens[0] = 5
            return Acceptance(Path(torch.tensor([0]), torch.tensor(1), torch.tensor(1.0)), torch.tensor(2))

        assert greedy(Steps(rewrites), 4).tokens == (1, 2, 1, 2)

    def test_a_canvas_may_be_asked_for_at_any_time(self) -> None:
        assert greedy(Hidden(lambda run: run.canvas), 1).steps[0].nfe == 1  # from then on no token ends the text


class TestMeter:
    """Every pass counts, whoever makes it and wherever."""

    def test_passes_of_copied_models_are_counted(self) -> None:
        def copies(run: Run) -> None:
            copied = copy.deepcopy(run.models).target()
            copied.prefill()
            copied.forward()

        assert greedy(Hidden(copies), 1).steps[0].nfe == 3  # the second reading of the prompt is a pass too

    def test_a_method_that_decodes_in_start_is_charged_for_it(self) -> None:
        result = greedy(DecodesInStart(), 16)
        assert (len(result.steps), result.steps[0].nfe, len(result.tokens)) == (1, 1, 16)
        assert (result.start_nfe, result.start_draft_nfe) == (16, 0)
        assert result.tokens == greedy(Hidden("other"), 16).tokens

    def test_its_time_is_charged_and_reading_the_prompt_is_not(self) -> None:
        """A millisecond a stamp: three passes in start have two each. Opening a drafter has four, which are reading."""
        results = {}
        for model in ("", "toy"):
            device = FakeDevice()
            clock = EventClock(device.event, device.synchronize)
            clock.wall_ns = clock.device_ns  # type: ignore[method-assign]  # the host is as fast as the device here
            results[model] = greedy(DecodesInStart(model), 3, Stopwatch(clock))
        assert results[""].start_ns == (2 * 3 + 1) * MS
        assert results["toy"].start_ns == results[""].start_ns + 2 * MS  # the gaps before and after the prompt is read
        assert results["toy"].prefill_ns == results[""].prefill_ns + 2 * MS

    def test_passes_of_a_drafter_in_start_are_its_own(self) -> None:
        result = greedy(DecodesInStart("toy"), 4)
        assert (result.start_nfe, result.start_draft_nfe) == (0, 4)

    def test_a_drafter_that_is_the_target_is_charged_as_the_target(self) -> None:
        result = greedy(DecodesInStart("self"), 4)
        assert (result.start_nfe, result.start_draft_nfe) == (4, 0)
        assert [(step.nfe, step.draft_nfe) for step in greedy(Hidden("self"), 2).steps] == [(2, 0), (2, 0)]

    @pytest.mark.parametrize("way", ["cache", "rows", "session"])
    def test_a_pass_beside_the_session_is_counted(self, way: str) -> None:
        result = greedy(Hidden(way), 3)
        assert [step.nfe for step in result.steps] == [2, 2, 2]

    def test_a_step_needs_a_pass_of_the_target_itself(self) -> None:
        def idle(run: Run) -> Acceptance:
            run.open("self").forward()
            return Acceptance(Path.root(torch.ones(1, V)), torch.tensor(1))

        with pytest.raises(ContractError, match="made no target pass"):
            greedy(Steps(idle), 2)

    def test_drafters_of_both_kinds_are_added(self) -> None:
        model = Tabular("tabular", {"vocabulary": V, "grid": (2, 2)})
        opener = lambda name: model.variant({"drafter": name})  # noqa: E731  # as above
        run = Run.of(Models(model, opener, (0, 1)), Sampling(1.0), 4, SeededDraws(0, "t", "p", 0))
        run.open("a").forward()
        run.picture("b").read(torch.tensor([1]), [1])
        assert PassTally.of(run) == PassTally(0, 0, 2)
        run.canvas.read(torch.tensor([1]), [1])
        assert PassTally.of(run) == PassTally(1, 1, 2)


def test_a_step_of_a_decode_alone_resamples_nothing_and_serves_one() -> None:
    result = play(Act(1, drafted=(2, 3), path=(0,)), Act(2), budget=3)
    assert [(step.resampled, step.served, step.levels) for step in result.steps] == [(0, 1, 2), (0, 1, 0)]


def test_forced_tokens_are_counted_where_they_are_drafted_tested_and_accepted() -> None:
    """Rows of two cells and an end, which is forced: places 2, 5 and 8."""
    model = Tabular("tabular", {"vocabulary": V, "grid": (3, 2, 5)})
    acts = (
        Act(5, drafted=(0, 1), path=(0, 1)),  # places 0 to 2: the end follows the path
        Act(0, drafted=(2, 3, 5), path=(0, 1, 2)),  # places 3 to 6: the end is accepted
        Act(5, drafted=(1, 4), path=(0,)),  # places 7 and 8: a draft in the end's place is rejected
    )
    run = Run.of(Models(model, lambda name: model, (0,), None), Sampling(1.0), 9, SeededDraws(0, "t", "p", 0))
    steps = decode(Scripted(acts), run).steps
    counts = [(s.forced, s.forced_drafted, s.forced_tested, s.forced_accepted) for s in steps]
    assert [step.tested for step in steps] == [2, 3, 2]
    assert counts == [(1, 0, 0, 0), (1, 1, 1, 1), (1, 1, 1, 0)]


class Staged(Scripted):
    """Its steps have a stage of two calls."""

    def step(self, run: Run, state: Iterator[Act]) -> Acceptance:
        for _ in range(2):
            run.timed(lambda: None, "resize")()
        return super().step(run, state)


def test_stages_are_summed_over_a_decode_by_name() -> None:
    device = FakeDevice()
    stopwatch = Stopwatch(EventClock(device.event, device.synchronize))
    model = Tabular("tabular", {"vocabulary": V})
    models = Models(model, lambda name: model, (0, 1), stopwatch)
    run = Run.of(models, Sampling(1.0), 3, SeededDraws(0, "t", "p", 0))
    assert decode(Staged((Act(1), Act(2), Act(3))), run).stages == {"resize": 6 * MS}
    assert play(Act(1), budget=1).stages == {}


def test_ranks_count_earlier_siblings_of_each_accepted_node_without_repeats() -> None:
    draft = Draft(torch.tensor([5, 5, 6, 7]), parents=torch.tensor([-1, -1, -1, 2]))
    read = HostAcceptance((2, 3), 0, 0.0)
    assert accepted_ranks(draft, read) == (2, 0) and accepted_ranks(replace(draft, parents=None), read) == ()
    assert accepted_ranks(replace(draft, repeats=torch.tensor([False, True, False, False])), read) == (1, 0)
