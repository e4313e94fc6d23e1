"""Any history leaves a session as if it had been started afresh on its tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backbones.tabular import Tabular, TabularCache
from harness.clock import CpuClock, Stopwatch
from harness.contracts import Draft, Path, Rows, Verdict, Window
from harness.errors import ContractError
from harness.session import Session

MODEL = Tabular("tabular", {"vocabulary": 4, "context": 64})
NO_EXPECTATION = torch.zeros(())


def session(tokens: Sequence[int], model: Tabular = MODEL, kind: str = "target") -> Session:
    return Session(model.cache(), model.offers, tokens, stopwatch=Stopwatch(CpuClock()), kind=kind)


def fresh_logits(tokens: Sequence[int]) -> torch.Tensor:
    return session(tokens).forward()[0]


def chain(*tokens: int) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long))


def verdict(nodes: Sequence[int], size: int, token: int) -> Verdict:
    padded = torch.tensor([*nodes, *[-1] * (size - len(nodes))], dtype=torch.long)
    stop = torch.tensor(nodes[-1] + 1 if nodes else 0)
    return Verdict(Path(padded, stop, NO_EXPECTATION), torch.tensor(token))


def ancestry(draft: Draft, node: int) -> list[int]:
    """Nodes from the root's child down to ``node``; none for -1."""
    parents = list(range(-1, len(draft) - 1)) if draft.parents is None else draft.parents.tolist()
    nodes: list[int] = []
    while node >= 0:
        nodes.insert(0, node)
        node = parents[node]
    return nodes


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 6))
    tokens = torch.tensor([draw(st.integers(0, 3)) for _ in range(size)], dtype=torch.long)
    if draw(st.booleans()):
        return Draft(tokens)
    return Draft(tokens, parents=torch.tensor([draw(st.integers(-1, k - 1)) for k in range(size)], dtype=torch.long))


@dataclass(frozen=True)
class Decode:
    """A pass, and a verdict on it; ``at``: the share of nodes before the last one kept. None: given up."""

    draft: Draft
    at: float | None
    token: int

    def act(self, target: Session) -> None:
        rows = target.forward(self.draft)
        tokens, said = list(target.tokens), self.draft.tokens.tolist()
        for node in range(-1, len(self.draft)):
            above = [said[k] for k in ancestry(self.draft, node)]
            assert torch.equal(rows[node + 1], fresh_logits([*tokens, *above]))
        if self.at is not None:
            nodes = ancestry(self.draft, round(self.at * len(self.draft)) - 1)
            emitted = target.commit(verdict(nodes, len(self.draft), self.token))
            assert emitted == (*(said[k] for k in nodes), self.token)
            assert target.tokens == [*tokens, *emitted]


@dataclass(frozen=True)
class Append:
    """What a drafter does with its own draws; reading ``tokens`` in between must not matter."""

    tokens: list[int]
    read: bool

    def act(self, target: Session) -> None:
        before = len(target)
        for token in self.tokens:
            target.append(torch.tensor([token]))
        assert len(target) == before + len(self.tokens)
        if self.read:
            assert target.tokens[before:] == self.tokens


@dataclass(frozen=True)
class Rollback:
    """Back to a share of the tokens."""

    share: float

    def act(self, target: Session) -> None:
        wanted = target.tokens[: max(1, round(self.share * len(target)))]
        target.rollback(len(wanted))
        assert target.tokens == wanted


@dataclass(frozen=True)
class RollbackBlind:
    """The same without reading the tokens first."""

    share: float

    def act(self, target: Session) -> None:
        length = max(1, round(self.share * len(target)))
        target.rollback(length)
        assert len(target) == length


@dataclass(frozen=True)
class Sync:
    """Become other tokens that share a beginning."""

    share: float
    tail: list[int]

    def act(self, target: Session) -> None:
        wanted = [*target.tokens[: max(1, round(self.share * len(target)))], *self.tail]
        target.sync(wanted)
        assert target.tokens == wanted


@dataclass(frozen=True)
class Prefill:
    """Read what is pending."""

    def act(self, target: Session) -> None:
        passes = target.passes
        target.prefill()
        assert target.cached == len(target) - 1
        assert target.passes == passes


Act = Decode | Append | Rollback | RollbackBlind | Sync | Prefill
SHARE = st.floats(0, 1)
ACTS: st.SearchStrategy[Act] = st.one_of(
    st.builds(Decode, drafts(), st.none() | SHARE, st.integers(0, 3)),
    st.builds(Append, TOKENS, st.booleans()),
    st.builds(Rollback, SHARE),
    st.builds(RollbackBlind, SHARE),
    st.builds(Sync, SHARE, TOKENS | st.just([])),
    st.builds(Prefill),
)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(prompt=TOKENS, history=st.lists(ACTS, min_size=1, max_size=7))
def test_any_history_equals_a_fresh_start(prompt: list[int], history: list[Act]) -> None:
    target = session(prompt)
    for act in history:
        act.act(target)
        assert 0 <= target.cached < len(target)
        twin = copy.deepcopy(target)  # asked on a copy, so that the history itself stays as drawn
        assert torch.equal(twin.forward()[0], fresh_logits(twin.tokens))
    assert torch.equal(target.forward()[0], fresh_logits(target.tokens))


class TestStaleEntriesShow:
    def test_a_cache_that_forgets_to_drop_a_refused_draft_gives_other_laws(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The comparison above has teeth: `keep` without its effect is seen."""
        monkeypatch.setattr(TabularCache, "keep", lambda self, length, entries=(): None)
        target = session([0, 1])
        target.forward(chain(2, 3))
        target.commit(verdict([], 2, 1))
        assert not torch.equal(target.forward()[0], fresh_logits([0, 1, 1]))


class Watching(TabularCache):  # type: ignore[misc]  # watched here, not varied
    """Keeps the windows that it was given."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.windows: list[Window] = []

    def extend(self, window: Window) -> Rows:
        self.windows.append(window)
        return super().extend(window)


def watched(tokens: Sequence[int]) -> tuple[Session, list[Window]]:
    cache = Watching()
    made = Session(cache, MODEL.offers, tokens, stopwatch=Stopwatch(CpuClock()))
    return made, cache.windows


class TestWindows:
    def test_prefill_reads_all_but_the_last_token_once_and_asks_for_no_logits(self) -> None:
        target, windows = watched([3, 1, 2, 0])
        target.prefill()
        target.prefill()
        assert [w.tokens.tolist() for w in windows] == [[3, 1, 2]]
        assert [w.rows for w in windows] == [0]
        assert (target.passes, target.rows, target.cached) == (0, 0, 3)

    def test_a_prompt_of_one_token_needs_no_prefill(self) -> None:
        target, windows = watched([3])
        target.prefill()
        assert windows == []

    def test_a_pass_feeds_the_last_token_again_and_asks_for_all_rows(self) -> None:
        target, windows = watched([3, 1, 2])
        target.prefill()
        target.forward(chain(0, 1))
        last = windows[-1]
        assert (last.tokens.tolist(), last.positions.tolist()) == ([2, 0, 1], [2, 3, 4])
        assert (last.base, last.rows, last.sees) == (2, 3, None)
        assert (target.passes, target.rows) == (1, 3)

    def test_without_a_prefill_the_first_pass_reads_the_prompt(self) -> None:
        target, windows = watched([3, 1, 2])
        assert target.forward(chain(0)).shape == (2, 4)
        assert (windows[-1].tokens.tolist(), windows[-1].rows, target.rows) == ([3, 1, 2, 0], 2, 4)

    def test_a_tree_has_depths_for_positions_and_sees_its_ancestors(self) -> None:
        target, windows = watched([3, 1])
        target.prefill()
        target.forward(Draft(torch.tensor([0, 1, 2, 3]), parents=torch.tensor([-1, -1, 0, 2])))
        last = windows[-1]
        assert last.positions.tolist() == [1, 2, 2, 3, 4]
        assert last.sees is not None
        assert last.sees.int().tolist() == [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [1, 1, 0, 1, 0],
            [1, 1, 0, 1, 1],
        ]

    def test_a_drafter_that_fell_behind_reads_both_tokens_in_one_pass(self) -> None:
        """After everything was accepted the drafter lacks its last draft and the closing token."""
        drafter, windows = watched([3, 1])
        drafter.prefill()
        for _ in range(2):
            drafter.forward()
            drafter.append(torch.tensor([0]))
        drafter.sync([3, 1, 0, 0, 2])
        drafter.forward()
        assert windows[-1].tokens.tolist() == [0, 2]
        assert windows[-1].positions.tolist() == [3, 4]


class TestBadUse:
    def test_a_draft_past_the_context_is_a_contract_error(self) -> None:
        small = Tabular("tabular", {"context": 6})
        target = session([0, 1, 2], small)
        with pytest.raises(ContractError, match=r"7 entries and the context is 6.*run\.room"):
            target.forward(chain(0, 0, 0, 0))
        assert target.forward(chain(0, 0, 0)).shape == (4, 3)

    def test_a_refused_draft_past_the_context_leaves_the_session_usable(self) -> None:
        small = Tabular("tabular", {"context": 6})
        target = session([0, 1, 2], small)
        with pytest.raises(ContractError):
            target.forward(chain(0, 0, 0, 0))
        assert torch.equal(target.forward()[0], session([0, 1, 2], small).forward()[0])
        assert target.passes == 1

    def test_no_prompt_is_a_contract_error(self) -> None:
        with pytest.raises(ContractError, match="at least one token"):
            session([])

    @pytest.mark.parametrize("length", [0, -1, 4])
    def test_rollback_keeps_between_one_and_all(self, length: int) -> None:
        with pytest.raises(ContractError, match="keep between 1 and 3"):
            session([0, 1, 2]).rollback(length)

    def test_sync_to_tokens_that_share_nothing(self) -> None:
        target = session([0, 1, 2])
        target.forward()
        target.sync([3, 1, 2])
        assert target.tokens == [3, 1, 2]
        assert torch.equal(target.forward()[0], fresh_logits([3, 1, 2]))

    def test_sync_to_no_tokens_is_a_contract_error(self) -> None:
        with pytest.raises(ContractError):
            session([0, 1, 2]).sync([])


def test_the_host_is_told_of_a_verdict_by_one_read() -> None:
    target = session([0, 1])
    target.forward(chain(2, 3, 1))
    made = verdict([0, 1], 3, 2)
    assert target.commit(made) == (2, 3, 2)
    assert made.read() is made.read()
    assert target.cached == 4
    assert len(target.draft) == 0


def test_a_copy_goes_its_own_way() -> None:
    target = session([0, 1])
    target.prefill()
    twin = copy.deepcopy(target)
    twin.forward(chain(2))
    twin.commit(verdict([0], 1, 3))
    assert (target.tokens, twin.tokens) == ([0, 1], [0, 1, 2, 3])
    assert torch.equal(target.forward()[0], fresh_logits([0, 1]))
    assert torch.equal(twin.forward()[0], fresh_logits([0, 1, 2, 3]))
