"""After any history a session equals a fresh one over the same tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.toy import Tabular, TabularCache
from stridebench.harness.core.cache import HiddenRows, Rows, Window
from stridebench.harness.core.capabilities import Tap
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.session import Session, ancestors
from stridebench.harness.errors import ContractError, UsageError
from tests.support import caches
from tests.support.caches import acceptance, chains_of, drafts

MODEL = Tabular("tabular", {"vocabulary": 4, "context": 64})
TAPS: tuple[Tap, ...] = (0, "middle", -1)


def session(tokens: Sequence[int], model: Tabular = MODEL, taps: Sequence[Tap] = ()) -> Session:
    return caches.session(model.cache(), model.capabilities, tokens, taps)


def fresh_logits(tokens: Sequence[int]) -> torch.Tensor:
    return session(tokens).forward()[0]


def fresh_hidden(tokens: Sequence[int]) -> torch.Tensor:
    """A row for every token, the last one too."""
    fresh = session([*tokens, 0], taps=TAPS)
    fresh.prefill()
    return fresh.hidden


def chain(*tokens: int) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long))


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@dataclass(frozen=True)
class Decode:
    """A pass, growths of its window, and an acceptance.

    Args:
        at: the share of nodes before the last accepted one; None: nothing is committed.
        probes: so many of the last nodes are probes, and then nothing grows.
        growths: tokens of further nodes, each with a share: of the nodes there before, the last it may hang from.
    """

    draft: Draft
    probes: int
    growths: list[list[tuple[int, float]]]
    at: float | None
    token: int

    def act(self, target: Session) -> None:
        draft = replace(self.draft, probes=min(self.probes, len(self.draft)))
        rows, newest = [target.forward(draft)], [target.newest]
        for nodes in [] if draft.probes else self.growths:
            rows.append(target.grow(self.below(nodes, len(target.draft))))
            newest.append(target.newest)
        self.judge(target, target.draft, torch.cat(rows), torch.cat(newest))

    def below(self, nodes: list[tuple[int, float]], size: int) -> Draft:
        parents = [round(share * (size + n)) - 1 for n, (_, share) in enumerate(nodes)]
        return Draft(torch.tensor([token for token, _ in nodes]), parents=torch.tensor(parents))

    def judge(self, target: Session, draft: Draft, rows: torch.Tensor, newest: torch.Tensor) -> None:
        tokens, drafted = list(target.tokens), draft.tokens.tolist()
        paths = [[], *chains_of(draft)]
        for path, row, hidden in zip(paths, rows, newest, strict=True):
            above = [drafted[k] for k in path]
            assert torch.equal(row, fresh_logits([*tokens, *above]))
            assert torch.equal(hidden, fresh_hidden([*tokens, *above])[-1])
        if self.at is not None:
            nodes = paths[round(self.at * draft.proposed)]
            emitted = target.commit(acceptance(nodes, len(draft), self.token))
            assert emitted == (*(drafted[k] for k in nodes), self.token)
            assert target.tokens == [*tokens, *emitted] and len(target.draft) == 0
            assert len(target.hidden) == len(target) - 1, "the last row is the one that gave the last token"


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
        expected = target.tokens[: max(1, round(self.share * len(target)))]
        target.sync(expected)
        assert target.tokens == expected


@dataclass(frozen=True)
class Sync:
    """Become other tokens, which may share a beginning."""

    share: float
    tail: list[int]

    def act(self, target: Session) -> None:
        kept = round(self.share * len(target))
        expected = [*target.tokens[: kept if self.tail else max(1, kept)], *self.tail]
        target.sync(expected)
        assert target.tokens == expected


@dataclass(frozen=True)
class Prefill:
    """Read what is pending."""

    def act(self, target: Session) -> None:
        passes = target.passes
        target.prefill()
        assert target.cached == len(target) - 1
        assert target.passes == passes


Act = Decode | Append | Rollback | Sync | Prefill
SHARE = st.floats(0, 1)
GROWTHS = st.lists(st.lists(st.tuples(st.integers(0, 3), SHARE), min_size=1, max_size=3), max_size=2)
ACTS: st.SearchStrategy[Act] = st.one_of(
    st.builds(Decode, drafts(), st.just(0) | st.integers(0, 2), GROWTHS, st.none() | SHARE, st.integers(0, 3)),
    st.builds(Append, TOKENS, st.booleans()),
    st.builds(Rollback, SHARE),
    st.builds(Sync, SHARE, TOKENS | st.just([])),
    st.builds(Prefill),
)


@settings(max_examples=120)
@given(prompt=TOKENS, history=st.lists(ACTS, min_size=1, max_size=7))
def test_any_history_equals_a_fresh_start(prompt: list[int], history: list[Act]) -> None:
    target = session(prompt, taps=TAPS)
    for act in history:
        act.act(target)
        assert 0 <= target.cached < len(target)
        assert torch.equal(target.hidden, fresh_hidden(target.tokens)[: target.cached])
        twin = copy.deepcopy(target)  # asked on a copy, so that the history itself stays as drawn
        assert torch.equal(twin.forward()[0], fresh_logits(twin.tokens))
        twin.sync([*twin.tokens, 3])
        assert len(target) == len(twin) - 1, "a copy shares its tokens"
    assert torch.equal(target.forward()[0], fresh_logits(target.tokens))


class TestStaleEntries:
    def test_a_cache_that_keeps_a_rejected_draft_changes_the_logits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The comparison above notices a `keep` without effect."""
        monkeypatch.setattr(TabularCache, "keep", lambda self, length, entries=(): None)
        target = session([0, 1])
        target.forward(chain(2, 3))
        target.commit(acceptance([], 2, 1))
        assert not torch.equal(target.forward()[0], fresh_logits([0, 1, 1]))

    def test_hidden_rows_of_a_rejected_draft_differ_from_fresh_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HiddenRows, "keep", lambda self, length, entries: None)
        target = session([0, 1], taps=TAPS)
        target.forward(Draft(torch.tensor([2, 3]), parents=torch.tensor([-1, -1])))
        target.commit(acceptance([1], 2, 1))
        assert torch.equal(target.hidden[:2], fresh_hidden([0, 1]))
        assert not torch.equal(target.hidden[2], fresh_hidden([0, 1, 3])[2])


class Watching(TabularCache):  # type: ignore[misc]  # watched here, not varied
    """Records its windows."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.windows: list[Window] = []

    def extend(self, window: Window) -> Rows:
        self.windows.append(window)
        return super().extend(window)


def watched(tokens: Sequence[int]) -> tuple[Session, list[Window]]:
    cache = Watching()
    return caches.session(cache, MODEL.capabilities, tokens), cache.windows


class TestWindows:
    def test_prefill_reads_all_but_the_last_token_once_and_asks_for_no_logits(self) -> None:
        target, windows = watched([3, 1, 2, 0])
        target.prefill()
        target.prefill()
        assert [w.tokens.tolist() for w in windows] == [[3, 1, 2]]
        assert [w.rows for w in windows] == [0]
        assert (target.passes, target.rows, target.cached) == (0, 0, 3)
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

    @pytest.mark.parametrize("parents", [[], [-1], [-2, -1, 0, 2, -1, 4], [1, -1], [2, 2, -1]])
    def test_ancestors_are_those_of_a_walk_also_out_of_order(self, parents: list[int]) -> None:
        walked = []
        for node in range(len(parents)):
            line, at = [False] * len(parents), node
            while at >= 0:
                line[at], at = True, parents[at]
            walked.append(line)
        assert ancestors(torch.tensor(parents, dtype=torch.long)).tolist() == walked

    def test_ancestors_on_a_device_are_computed_without_reading_it(self) -> None:
        on_device = ancestors(torch.tensor([-1, 0, 0], device="meta"))  # to read it is an error
        assert (on_device.device.type, tuple(on_device.shape)) == ("meta", (3, 3))

    def test_new_nodes_see_their_ancestors_and_every_token_and_are_read_once(self) -> None:
        target, windows = watched([3, 1])
        target.prefill()
        target.forward(Draft(torch.tensor([0, 1]), parents=torch.tensor([-1, -1])))
        logits = target.grow(Draft(torch.tensor([2, 3, 2]), parents=torch.tensor([1, 2, -1])))
        last = windows[-1]
        assert (last.tokens.tolist(), last.positions.tolist()) == ([2, 3, 2], [3, 4, 2])
        assert (last.base, last.rows, logits.shape) == (2, 3, (3, 4))
        assert last.sees is not None
        assert last.sees.int().tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
        assert (target.passes, target.rows, len(target.draft)) == (2, 6, 5)

    def test_without_parents_growth_is_a_chain_below_the_last_node(self) -> None:
        target = session([3, 1])
        target.forward(chain(0))
        target.grow(chain(2, 3))
        assert target.draft.parents is not None
        assert target.draft.parents.tolist() == [-1, 0, 1]
        assert target.commit(acceptance([0, 1, 2], 3, 1)) == (0, 2, 3, 1)

    def test_features_go_with_their_entries(self) -> None:
        target, windows = watched([3, 1, 2])
        features = torch.arange(10, dtype=torch.float64).view(5, 2)
        target.prefill(features[:2])
        first = target.forward(chain(0), features[2:4])
        target.grow(chain(1), features[4:])
        features_read = [w.features for w in windows if w.features is not None]
        assert torch.equal(torch.cat(features_read), features)
        other, _ = watched([3, 1, 2])
        other.prefill(features[:2])
        assert torch.equal(other.forward(chain(0), features[2:4]), first)
        assert not torch.equal(other.forward(chain(0), features[1:3]), first)

    def test_a_drafter_that_fell_behind_reads_both_tokens_in_one_pass(self) -> None:
        """After everything was accepted the drafter lacks its last draft and the bonus token."""
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
        assert target.passes == 0
        assert torch.equal(target.forward(chain(0, 0, 0))[0], session([0, 1, 2], small).forward()[0])

    def test_growth_needs_a_window_over_the_same_tokens(self) -> None:
        target = session([0, 1, 2])
        with pytest.raises(ContractError, match="call forward first"):
            target.grow(chain(0))
        target.forward(chain(0, 1))
        target.sync(target.tokens[:2])
        with pytest.raises(ContractError, match="call forward first"):
            target.grow(chain(0))

    def test_nothing_grows_below_probes(self) -> None:
        target = session([0, 1, 2])
        target.forward(Draft(torch.tensor([0, 1]), probes=1))
        with pytest.raises(ContractError, match="ends in 1 probes"):
            target.grow(chain(0))

    def test_growth_past_the_context_is_a_contract_error(self) -> None:
        target = session([0, 1, 2], Tabular("tabular", {"context": 5}))
        target.forward(chain(0))
        with pytest.raises(ContractError, match="6 entries and the context is 5"):
            target.grow(chain(0, 1))
        assert target.grow(chain(0)).shape == (1, 3)

    def test_absent_layers_are_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="backbone of 8 layers: give each from 0"):
            session([0], taps=[9])
        bare = replace(MODEL.capabilities, layers=0)
        with pytest.raises(UsageError, match="serves none; take one that meets HIDDEN"):
            caches.session(MODEL.cache(), bare, [0], [-1])

    def test_a_tap_after_the_prefill_is_a_contract_error(self) -> None:
        target = session([0, 1])
        target.prefill()
        with pytest.raises(ContractError, match=r"1 entries read.*tap before the prefill"):
            target.tap([-1])

    def test_no_tokens_are_a_contract_error(self) -> None:
        with pytest.raises(ContractError, match="at least one token"):
            session([])
        with pytest.raises(ContractError):
            session([0, 1, 2]).sync([])


def test_an_acceptance_is_read_by_the_host_once() -> None:
    result = acceptance([0, 1], 3, 2)
    assert result.read() is result.read()
