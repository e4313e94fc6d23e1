"""A running state: which entries are read when, and how many copies are taken; caches of transformers are copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.snapshots import SnapshotCache, TransformersState, reads_on
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.errors import ContractError, UsageError


class Journal:
    """A net whose state is all that it read: token, position, feature, gate. It counts passes and copies."""

    rereads = 2

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.copies = 0

    def begin(self) -> list[tuple[float, ...]]:
        return []

    def copied(self, state: list[Any]) -> list[Any]:
        self.copies += 1
        return list(state)

    def read(self, state: list[Any], window: Window) -> Rows:
        count = len(window.tokens)
        self.reads.append((count, window.rows))
        features = torch.full((count,), -1) if window.features is None else window.features
        gate = torch.zeros(count) if window.gate is None else window.gate
        columns = (window.tokens, window.positions, features, gate)
        state += zip(*(column.tolist() for column in columns), strict=True)
        hidden = window.tokens.double()[:, None, None, None] if window.taps else None
        return Rows(window.tokens.double()[count - window.rows :, None], hidden)


def window(begin: int, count: int, rows: int | None = None, **more: Any) -> Window:
    at = torch.arange(begin, begin + count)
    return Window(10 + at, at, begin, None, count if rows is None else rows, **more)


def entries(*values: int) -> tuple[tuple[float, ...], ...]:
    return tuple((10 + value, value, -1, 0) for value in values)


def read(cache: SnapshotCache, *windows: tuple[int, int]) -> None:
    """Read (begin, count) each, dropping what lies behind its begin."""
    for begin, count in windows:
        cache.keep(begin)
        cache.extend(window(begin, count))


def test_kept_entries_behind_the_copy_are_read_with_the_next_window_or_in_a_pass_before_it() -> None:
    """Up to two entries join the window; the third makes a pass of its own."""
    for kept, passes, copies in ((0, [(2, 2)], 3), (1, [(3, 2)], 2), (2, [(4, 2)], 2), (3, [(3, 0), (2, 2)], 3)):
        net = Journal()
        cache = SnapshotCache(net, 32)
        cache.extend(window(0, 3))
        cache.extend(window(3, 4))
        net.reads, net.copies = [], 0
        cache.keep(3, range(kept))
        assert net.copies == 1  # the last copy that lies before the kept end takes the state's place
        rows = cache.extend(window(3 + kept, 2))
        assert net.reads == passes and net.copies == copies - 1
        assert rows.logits[:, 0].tolist() == [13 + kept, 14 + kept]
        assert cache.entries == entries(*range(5 + kept))


def test_keeping_everything_copies_nothing_and_a_prefill_takes_no_copy() -> None:
    net = Journal()
    cache = SnapshotCache(net, 32)
    cache.extend(window(0, 5, rows=0))
    cache.keep(5)
    cache.keep(3, [0, 1])
    assert net.copies == 0
    cache.extend(window(5, 1))
    assert net.copies == 1
    cache.keep(5, [0])
    assert cache.entries == entries(*range(6))  # of a copy, which has nothing to read
    assert net.copies == 2 and net.reads == [(5, 0), (1, 1)]
    fresh = Journal()
    SnapshotCache(fresh, 32).extend(window(0, 2))
    assert fresh.copies == 1


def test_a_rollback_before_every_copy_begins_anew() -> None:
    net = Journal()
    cache = SnapshotCache(net, 64)
    cache.extend(window(0, 5, rows=0))
    for at in range(5, 24):
        cache.extend(window(at, 1))
    net.reads = []
    read(cache, (8, 1))  # the last 16 copies are kept, those of entries 8 to 23
    assert net.reads == [(1, 1)]
    read(cache, (7, 2))
    assert net.reads == [(1, 1), (7, 0), (2, 2)]  # the copy of entry 7 is the first that was dropped
    cache.keep(0)
    assert cache.entries == ()
    cache.extend(window(0, 2))
    assert cache.entries == entries(0, 1)


def test_entries_behind_the_state_are_read_into_a_copy_of_it() -> None:
    net = Journal()
    cache = SnapshotCache(net, 32)
    assert cache.entries == ()
    read(cache, (0, 3), (3, 4))
    cache.keep(3, [0, 1])
    twin = copy.deepcopy(cache)
    assert cache.entries == cache.entries == entries(0, 1, 2, 3, 4)
    read(twin, (4, 3))
    twin.keep(1)
    assert cache.entries == entries(0, 1, 2, 3, 4) and twin.entries == entries(0)
    read(cache, (5, 1))
    assert cache.entries == entries(0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("first", [None, [True, False, True, False]])
@pytest.mark.parametrize("second", [None, [True, True]])
def test_features_gates_and_hidden_rows_belong_to_their_entries(
    first: list[bool] | None, second: list[bool] | None
) -> None:
    net = Journal()
    cache = SnapshotCache(net, 32)

    def more(at: int, count: int, gate: list[bool] | None) -> dict[str, Any]:
        features = torch.arange(at, at + count) + 100.0
        return {"taps": (0,), "features": features, "gate": None if gate is None else torch.tensor(gate)}

    cache.extend(window(0, 4, **more(0, 4, first)))
    cache.keep(0, range(2))
    rows = cache.extend(window(2, 2, rows=1, **more(2, 2, second)))
    assert net.reads[-1] == (4, 1)
    assert rows.hidden is not None and rows.hidden.flatten().tolist() == [12, 13]
    gates = [*(first or [False] * 4)[:2], *(second or [False] * 2)]
    assert cache.entries == tuple((10 + i, i, 100 + i, gate) for i, gate in enumerate(gates))


def test_a_first_window_with_features_is_read_again_before_one_without() -> None:
    net = Journal()
    cache = SnapshotCache(net, 32)
    cache.extend(window(0, 3, features=torch.arange(3.0)))
    cache.keep(0, [0])
    cache.extend(window(1, 1))
    assert net.reads == [(3, 3), (2, 1)]


def test_trees_and_entries_out_of_order_are_refused_and_chains_with_a_mask_are_not() -> None:
    cache = SnapshotCache(Journal(), 32)
    cache.extend(window(0, 2))
    chain = torch.ones(3, 5).tril(2).bool()
    assert cache.extend(replace(window(2, 3), base=0, sees=chain)).logits[:, 0].tolist() == [12, 13, 14]
    cache.keep(2)
    for row, column in ((0, 0), (2, 3), (2, 0), (1, 2)):
        tree = chain.clone()
        tree[row, column] = False
        with pytest.raises(UsageError, match="this window is a tree"):
            cache.extend(replace(window(2, 3), base=0, sees=tree))
    for kept in ((1,), (0, 0), (1, 0)):
        with pytest.raises(ContractError, match="is not a chain"):
            cache.keep(0, kept)
    with pytest.raises(ContractError, match="would pass the context of 32"):
        cache.extend(window(2, 31))


class Signed:
    """A function that is read by the names of its arguments alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])

    def __call__(self) -> None: ...


class Summing:
    """A causal model whose logits are running sums; as Mamba, it may misread a window behind a state."""

    def __init__(self, name: str = "past_key_values", cuts: bool = True, misreads: bool = False) -> None:
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=3))
        self.name, self.misreads, self.calls = name, misreads, []
        names = ["input_ids", "use_cache", name, *(["logits_to_keep"] if cuts else [])]
        self.forward = Signed(names)

    def __call__(self, input_ids: Tensor, use_cache: bool, logits_to_keep: int = 0, **more: Any) -> Any:
        state = more.pop(self.name)
        assert use_cache and not more
        self.calls.append((input_ids.shape[1], logits_to_keep))
        before = 0.0 if self.misreads and state.seen and input_ids.shape[1] > 1 else state.total
        sums = before + (2.0**input_ids).cumsum(1)
        state.total, state.seen = float(sums[0, -1]), True
        return SimpleNamespace(logits=sums[:, -logits_to_keep:, None])


class Sum:
    """A state of `Summing`, in the place of the cache of transformers."""

    def __init__(self) -> None:
        self.total, self.seen, self.layers = 0.0, False, []

    def has_previous_state(self) -> bool:
        return self.seen


def states(model: Summing, windows: bool, monkeypatch: pytest.MonkeyPatch) -> TransformersState:
    state = TransformersState(model, windows)
    monkeypatch.setattr(state, "begin", Sum)
    return state


@pytest.mark.parametrize("name", ["past_key_values", "cache_params"])
@pytest.mark.parametrize(("cuts", "rows"), [(True, 0), (True, 1), (True, 2), (True, 3), (False, 0), (False, 2)])
@pytest.mark.parametrize("windows", [True, False])
def test_a_model_of_transformers_reads_windows_or_one_entry_after_the_other(
    name: str, cuts: bool, rows: int, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Summing(name, cuts, misreads=not windows)
    net = states(model, windows, monkeypatch)
    assert (net.layers, net.rereads) == (3, 8 if windows else 0)
    state = net.begin()
    net.read(state, window(-10, 3, rows=1))
    parts = [3] if windows else [1, 1, 1]
    logits = net.read(state, window(-7, 3, rows=rows)).logits
    assert logits[:, 0].tolist() == [15.0, 31.0, 63.0][3 - rows :]
    assert [count for count, _ in model.calls] == [3, *parts]
    assert [cut for _, cut in model.calls[1:]] == [max(1, min(rows, part)) if cuts else 0 for part in parts]


def test_a_copy_of_a_cache_shares_attention_and_copies_states() -> None:
    keys, states = torch.ones(2), {0: torch.ones(2), 1: None}
    cache = SimpleNamespace(layers=[SimpleNamespace(keys=keys, conv_states=states, index=4)], name="x")
    twin: Any = TransformersState(Summing()).copied(cache)  # type: ignore[arg-type]
    (layer,) = twin.layers
    assert layer is not cache.layers[0] and layer.keys is keys and (layer.index, twin.name) == (4, "x")
    states[0] += 1
    assert layer.conv_states[0].tolist() == [1.0, 1.0] and layer.conv_states[1] is None


@pytest.mark.parametrize(
    ("windows", "misreads", "shares", "error", "reads"),
    [
        (True, False, False, 0.0, True),
        (True, True, False, 0.0, False),
        (False, True, False, 0.0, True),
        (True, False, True, 0.0, False),
        (True, False, False, 0.9, True),  # the logits are 1 to 127: one in a hundred of their range is 1.26
        (True, False, False, 1.5, False),
        (True, False, False, -1.5, False),
    ],
)
def test_a_model_reads_on_if_windows_from_a_copied_state_have_the_logits_of_the_whole_chain(
    windows: bool, misreads: bool, shares: bool, error: float, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Summing(misreads=misreads)
    net = states(model, windows, monkeypatch)
    monkeypatch.setattr(net, "copied", (lambda state: state) if shares else copy.copy)
    if error:
        plain = net.read

        def rounded(state: Any, one: Window) -> Rows:
            rows = plain(state, one)
            return Rows(rows.logits + error * (len(one.tokens) == 2))

        monkeypatch.setattr(net, "read", rounded)
    assert reads_on(net, torch.device("cpu")) is reads
    if not error and not misreads and not shares:
        assert [count for count, _ in model.calls] == [7, 3, 2, 3, 1, 3, 4]


def test_a_model_with_a_running_state_has_no_other_passes() -> None:
    net = TransformersState(Summing())
    with pytest.raises(ContractError, match="read through its snapshots"):
        net(None, 1)
    layers: Sequence[int] = (0, 1)
    with pytest.raises(UsageError, match="no variants of fewer layers"):
        net.pick(layers)
