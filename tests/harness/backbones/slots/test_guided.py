"""Guidance over two caches equals two separate passes mixed by hand, after any history; ids that a grid allows."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.backbones.slots.guided import GridGrammar, GuidedCache
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Grid
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError
from tests.support.caches import acceptance, chains_of, drafts, feed, feed_windows
from tests.support.caches import session as open_session

MODEL = Tabular("tabular", {"vocabulary": 4, "context": 64})
SCALE = 2.5
NEGATIVES = [(3,), (2, 3), (1, 0, 2, 1, 3)]


def guided(prompt: int, negative: Sequence[int], scale: float = SCALE) -> GuidedCache:
    other = MODEL.cache()
    return GuidedCache(MODEL.cache(), prompt, scale=scale, unconditional=other, negative=negative)


def mixed(tokens: Sequence[int], prompt: int, negative: Sequence[int]) -> Tensor:
    """Rows from the prompt's last token on, from two passes over everything."""
    conditional = feed(MODEL.cache(), tokens, 0)[prompt - 1 :]
    other = feed(MODEL.cache(), [*negative, *tokens[prompt:]], 0)[len(negative) - 1 :]
    return other + SCALE * (conditional - other)


@pytest.mark.parametrize("negative", NEGATIVES)
@pytest.mark.parametrize("prompt", [1, 3, 6])
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 9])
def test_equals_two_passes_mixed_by_hand(prompt: int, negative: tuple[int, ...], cut: int) -> None:
    tokens = [0, 2, 1, 1, 3, 0, 2, 3, 1, 0]
    cache = guided(prompt, negative)
    rows = feed_windows(cache, tokens, [0, cut])
    torch.testing.assert_close(rows[prompt - 1 :], mixed(tokens, prompt, negative), rtol=0, atol=1e-12)
    alone = feed(MODEL.cache(), tokens, 0)[: prompt - 1]
    torch.testing.assert_close(rows[: prompt - 1], alone, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_scales_zero_and_one_give_a_single_branch(scale: float) -> None:
    tokens = [0, 2, 1, 1, 3]
    rows = feed(guided(3, [2, 3], scale), tokens, 0)[2:]
    alone = feed(MODEL.cache(), tokens, 0)[2:] if scale else feed(MODEL.cache(), [2, 3, *tokens[3:]], 0)[1:]
    torch.testing.assert_close(rows, alone, rtol=0, atol=0)


def test_at_scale_one_only_one_branch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    other = MODEL.cache()
    monkeypatch.setattr(other, "extend", lambda window: pytest.fail("the other branch must not run"))
    feed(GuidedCache(MODEL.cache(), 1, scale=1.0, unconditional=other, negative=[3]), [0, 1], 0)


def test_without_a_scale_only_one_branch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    other = MODEL.cache()
    monkeypatch.setattr(other, "extend", lambda window: pytest.fail("the other branch must not run"))
    feed(GuidedCache(MODEL.cache(), 1, unconditional=other, negative=[3]), [0, 1], 0)


def test_the_negative_prompt_is_read_once_with_the_first_shared_entry() -> None:
    reads: list[int] = []

    class Watching(Cache):
        def __init__(self) -> None:
            self.inner = MODEL.cache()

        def extend(self, window: Window) -> Rows:
            reads.append(len(window.tokens))
            return self.inner.extend(window)

        def keep(self, length: int, entries: Sequence[int] = ()) -> None:
            self.inner.keep(length, entries)

    cache = GuidedCache(MODEL.cache(), 3, scale=2.0, unconditional=Watching(), negative=[1, 0, 3])
    feed(cache, [0, 1], 0, rows=0)
    assert reads == []
    feed(cache, [2], 2)
    assert reads == [2, 1]
    feed(cache, [2, 1], 3)
    assert reads == [2, 1, 2]


PROMPT = [0, 2, 1]


def session(tokens: Sequence[int], negative: tuple[int, ...]) -> Session:
    cache = guided(len(PROMPT), negative)
    return open_session(cache, Capabilities(4, 48), tokens)


@settings(max_examples=40)
@given(data=st.data(), negative=st.sampled_from(NEGATIVES), prefill=st.booleans())
def test_after_any_history_guidance_equals_a_fresh_cache(
    data: st.DataObject, negative: tuple[int, ...], prefill: bool
) -> None:
    """Chains, trees, rejected drafts, rollbacks to the prompt's last token and other continuations."""
    target = session(PROMPT, negative)
    if prefill:
        target.prefill()
    for _ in range(data.draw(st.integers(1, 5))):
        tokens, draft = list(target.tokens), data.draw(drafts())
        rows, paths = target.forward(draft), [[], *chains_of(draft)]
        for row, path in zip(rows, paths, strict=True):
            expected = mixed([*tokens, *draft.tokens[path].tolist()], len(PROMPT), negative)[-1]
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-12)
        if data.draw(st.booleans()):
            path = data.draw(st.sampled_from(paths))
            target.commit(acceptance(path, len(draft), data.draw(st.integers(0, 3))))
        if data.draw(st.booleans()):
            target.sync(target.tokens[: data.draw(st.integers(len(PROMPT), len(target)))])
        if data.draw(st.booleans()):
            target.sync([*PROMPT, *data.draw(st.lists(st.integers(0, 3), max_size=4))])
        twin = copy.deepcopy(target)
        expected = mixed(twin.tokens, len(PROMPT), negative)[-1]
        torch.testing.assert_close(twin.forward()[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("back", [1, 2])
def test_a_rollback_into_the_prompt_can_be_continued(back: int) -> None:
    target = session([*PROMPT, 3, 0], (2, 3))
    target.forward(Draft(torch.tensor([1, 2])))
    target.sync(target.tokens[:back])
    target.sync([*PROMPT, 1])
    expected = mixed([*PROMPT, 1], len(PROMPT), (2, 3))[-1]
    torch.testing.assert_close(target.forward()[0], expected, rtol=0, atol=1e-12)


def test_a_stale_entry_of_the_other_branch_changes_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above notices a stale entry."""
    cache = guided(len(PROMPT), (2, 3))
    monkeypatch.setattr(cache._unconditional, "keep", lambda length, entries=(): None)
    feed(cache, [*PROMPT, 1, 2], 0)
    cache.keep(4)
    last = feed(cache, [0], 4)[-1]
    assert not torch.allclose(last, mixed([*PROMPT, 1, 0], len(PROMPT), (2, 3))[-1])


class TestWrongUse:
    def test_a_tree_below_an_entry_of_the_prompt_is_refused(self) -> None:
        cache = guided(4, [3])
        sees = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
        with pytest.raises(ContractError, match="hangs from entry 0 and the prompt ends with entry 3"):
            cache.extend(Window(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]), 0, sees, 3))

    def test_prompt_entries_moved_behind_the_prompt_are_refused(self) -> None:
        cache = guided(3, [3])
        feed(cache, [0, 1, 2, 3], 0)
        with pytest.raises(ContractError, match="moves entries of the prompt behind its end"):
            cache.keep(0, (2, 1, 0))

    @pytest.mark.parametrize(("prompt", "negative"), [(0, [1]), (2, [])])
    def test_a_branch_without_a_prompt_is_refused(self, prompt: int, negative: list[int]) -> None:
        with pytest.raises(ContractError, match="needs a prompt on both sides"):
            guided(prompt, negative)


class TestGridGrammar:
    GRID = Grid(2, 3, eol=7, tail=(8, 9), start=11)
    ALLOWED = torch.arange(10) < 5

    def open_ids(self, place: int) -> list[int]:
        row = GridGrammar(self.GRID, self.ALLOWED)(torch.tensor([place]))[0]
        assert set(row.tolist()) <= {0.0, float("-inf")}
        return (row == 0).nonzero()[:, 0].tolist()

    def test_cells_allow_codes_and_row_ends_their_one_id(self) -> None:
        cells = list(range(5))
        open_ids_by_place = [self.open_ids(place) for place in range(-1, 11)]
        assert open_ids_by_place == [cells, cells, cells, cells, [7], cells, cells, cells, [7], [8], [9], cells]

    def test_each_row_of_a_cache_is_masked_for_the_place_that_it_predicts(self) -> None:
        """The last entry of a prompt of three predicts place 0."""
        grammar = GridGrammar(Grid(2, 2, eol=3), torch.arange(4) < 3)
        plain = guided(3, [3])
        masked = GuidedCache(MODEL.cache(), 3, scale=SCALE, unconditional=MODEL.cache(), negative=[3], grammar=grammar)
        tokens = [0, 1, 2, 0, 1, 3, 2]
        rows, expected = feed(masked, tokens, 0)[2:], feed(plain, tokens, 0)[2:]
        row_ends = torch.tensor([False, False, True, False, False])
        assert torch.equal(rows[~row_ends][:, :3], expected[~row_ends][:, :3])
        assert torch.isinf(rows[~row_ends][:, 3]).all()
        assert torch.equal(rows[row_ends][:, 3], expected[row_ends][:, 3])
        assert torch.isinf(rows[row_ends][:, :3]).all()


class Tapping(Cache):
    """Tokens as hidden rows, a hundred more in the other branch; it remembers its windows."""

    def __init__(self, more: float) -> None:
        self.more = more
        self.windows: list[Window] = []

    def extend(self, window: Window) -> Rows:
        self.windows.append(window)
        logits = torch.zeros(window.rows, 4)
        return Rows(logits, window.tokens.float()[:, None, None, None] + self.more if window.taps else None)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        pass


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
def test_hidden_rows_are_those_of_either_branch_and_of_earlier_entries_in_both_places(cut: int) -> None:
    """A prompt of four: its last token and what follows are read by both branches, under the other one's last token.

    The entry before is the first token of the other prompt there, whichever window read it.
    """
    tokens = [1, 2, 3, 0, 1, 3]
    conditional, other = Tapping(0.0), Tapping(100.0)
    cache = GuidedCache(conditional, 4, scale=2.0, unconditional=other, negative=[0, 2])
    features = torch.arange(6.0)[:, None]
    hidden = []
    for first, last in ((0, cut), (cut, 6)):
        ids = torch.tensor(tokens[first:last])
        window = Window(ids, torch.arange(first, last), first, None, 0, (0,), features[first:last])
        hidden.append(cache.extend(window).hidden)
    rows = torch.cat([one for one in hidden if one is not None])[:, :, 0, 0]
    assert rows[:, 0].tolist() == tokens
    assert rows[:, 1].tolist() == [1, 2, 100, 102, 101, 103]
    read = [window.features for window in other.windows if window.features is not None]
    assert torch.cat(read)[:, 0].tolist() == [3, 4, 5]


def test_without_guidance_hidden_rows_have_one_branch() -> None:
    cache = GuidedCache(Tapping(0.0), 2, scale=1.0, unconditional=Tapping(100.0), negative=[0])
    window = Window(torch.tensor([1, 2, 3]), torch.arange(3), 0, None, 0, (0,))
    hidden = cache.extend(window).hidden
    assert hidden is not None and hidden.flatten().tolist() == [1, 2, 3]
