"""A cache for models that keep a running state: recurrent and hybrid ones, whose layers do not all attend to a cache.

Reading advances such a state and nothing takes it back. So the state is copied before each pass. When drafts are
rejected, the last copy that lies before them takes its place, and the accepted entries behind that copy are read again,
if they are few together with the next window.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import DynamicCache

from stridebench.harness.backbones.slots.net import Net, check_kept, check_window
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.errors import ContractError, UsageError

COPIES = 16
"""States that are kept; a drafter takes back as many tokens as it drafted, one pass each."""


class RecurrentNet(Protocol):
    """A model with a running state.

    Attributes:
        rereads: the most entries that are read again in the pass of a window; more of them take a pass before it.
    """

    rereads: int

    def begin(self) -> Any:
        """Return the state before the first entry."""

    def copied(self, state: Any) -> Any:
        """Return a copy that does not change when the state is advanced."""

    def read(self, state: Any, window: Window) -> Rows:
        """Advance the state by the entries of a chain, and return their rows."""


@final
class SnapshotCache(Cache):
    """One sequence over a model with a running state, of at most ``context`` entries.

    Attributes:
        entries: the kept value of each entry, if the net's state is a list of them (hashes of a tabular model).
    """

    def __init__(self, net: RecurrentNet, context: int) -> None:
        self._net, self._context = net, context
        self._state, self._held = net.begin(), 0
        self._copies: list[tuple[int, Any]] = []
        self._inputs: Window | None = None
        self._length = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> SnapshotCache:
        twin = copy.copy(self)
        twin._state, twin._copies = self._net.copied(self._state), list(self._copies)
        return twin

    @property
    def entries(self) -> Sequence[Any]:  # type: ignore[override]  # read-only here
        """Return the values of the entries: those behind the state are read into a copy of it."""
        if not isinstance(self._state, list):
            return ()
        state = self._net.copied(self._state)
        if self._inputs is not None and self._held < self._length:
            self._net.read(state, _cut(self._inputs, self._held, self._length))
        return tuple(state)

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """Read the window's entries behind those that were kept.

        Raises:
            UsageError: the window is a tree, whose branches would need a state each.
        """
        check_window(window, self._length, self._context)
        if window.sees is not None and not _is_chain(window.sees):
            raise UsageError(
                "a model with recurrent layers reads one chain, and this window is a tree; take a method that drafts "
                "chains, such as speculative or prompt_lookup"
            )
        behind = None if self._inputs is None else _cut(self._inputs, self._held, self._length)
        if behind is not None and len(behind.tokens) > self._net.rereads:
            self._net.read(self._state, behind)
            self._held = self._length
        if window.rows and self._held == self._length:
            self._copies = [*self._copies[1 - COPIES :], (self._held, self._net.copied(self._state))]
        again = behind is not None and self._held < self._length
        rows = self._net.read(self._state, _joined(behind, window) if again and behind is not None else window)
        self._inputs = window if self._inputs is None else _joined(self._inputs, window)
        self._length += len(window.tokens)
        self._held = self._length
        return rows if rows.hidden is None else Rows(rows.logits, rows.hidden[-len(window.tokens) :])

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep a chain of entries; the state is taken back to the last copy that lies before its end."""
        check_kept(length, entries, self._length)
        if list(entries) != list(range(len(entries))):
            raise ContractError(f"keep({length}, {tuple(entries)}) is not a chain, and a running state is of one chain")
        self._length = length + len(entries)
        if self._inputs is not None:
            self._inputs = _cut(self._inputs, 0, self._length)
        if self._length < self._held:
            self._take_back()

    def _take_back(self) -> None:
        self._copies = [kept for kept in self._copies if kept[0] <= self._length]
        self._held, state = self._copies[-1] if self._copies else (0, self._net.begin())
        self._state = self._net.copied(state)


def _is_chain(sees: Bool[Tensor, "N S"]) -> bool:
    """Return whether each new entry attends to all entries before it, which are S - N cached ones and new ones."""
    return bool(sees[torch.ones_like(sees).tril(sees.shape[1] - sees.shape[0])].all())


def _cut(window: Window, begin: int, end: int) -> Window:
    features = None if window.features is None else window.features[begin:end]
    gate = None if window.gate is None else window.gate[begin:end]
    tokens, positions = window.tokens[begin:end], window.positions[begin:end]
    return replace(window, tokens=tokens, positions=positions, sees=None, rows=0, features=features, gate=gate)


def _joined(first: Window, second: Window) -> Window:
    """Return one window of both, with the rows and the taps of the second."""
    features, gate = second.features, second.gate
    if features is not None and first.features is not None:
        features = torch.cat([first.features, features])
    if first.gate is not None or gate is not None:
        gates = [torch.zeros_like(w.tokens, dtype=torch.bool) if w.gate is None else w.gate for w in (first, second)]
        gate = torch.cat(gates)
    tokens = torch.cat([first.tokens, second.tokens])
    positions = torch.cat([first.positions, second.positions])
    return replace(second, tokens=tokens, positions=positions, sees=None, features=features, gate=gate)


@final
class TransformersState:
    """A recurrent or hybrid causal language model of transformers, and copies of its cache.

    Args:
        windows: False if the model reads several entries at once only from an empty cache, as Mamba does: then one
            entry after the other is read.
    """

    kind = "transformers"

    def __init__(self, model: Any, windows: bool = True) -> None:
        self.model, self.windows, self.rereads = model, windows, 8 if windows else 0
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in names else "past_key_values"
        self._cuts = "logits_to_keep" in names

    def begin(self) -> TransformersCache:
        return DynamicCache(config=self.model.config)

    def copied(self, state: TransformersCache) -> TransformersCache:
        """Return the same entries of attention, which a pass replaces and never changes, and copies of all states."""
        twin = copy.copy(state)
        twin.layers = [copy.copy(layer) for layer in state.layers]
        for layer in twin.layers:
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, {k: v.clone() if isinstance(v, Tensor) else v for k, v in value.items()})
        return twin

    def read(self, state: TransformersCache, window: Window) -> Rows:
        ids = window.tokens
        whole = self.windows or not state.has_previous_state()
        parts = [self._logits(state, part, window.rows) for part in ((ids,) if whole else torch.split(ids, 1))]
        logits = torch.cat(parts)
        return Rows(logits[len(logits) - window.rows :])

    def _logits(self, state: TransformersCache, ids: Int[Tensor, " N"], rows: int) -> Float[Tensor, "R V"]:
        cut = {"logits_to_keep": max(1, min(rows, len(ids)))} if self._cuts else {}
        logits: Tensor = self.model(input_ids=ids[None], use_cache=True, **{self._cache_name: state}, **cut).logits[0]
        return logits

    def __call__(self, inputs: Any, rows: int) -> Float[Tensor, "R V"]:
        raise ContractError("a model with a running state is read through its snapshots")

    def pick(self, layers: Sequence[int]) -> Net:
        raise UsageError("a model with recurrent layers has no variants of fewer layers")


def reads_on(net: TransformersState, device: torch.device) -> bool:
    """Return whether windows that go on from a copied state have the logits of the whole chain."""
    ids = torch.arange(7, device=device)

    def window(start: int, end: int) -> Window:
        return Window(ids[start:end], ids[start:end], 0, None, end - start)

    with torch.inference_mode():
        whole = net.read(net.begin(), window(0, 7)).logits
        parts, state = [], net.begin()
        for start, end in ((0, 2), (2, 3), (3, 7)):
            net.read(net.copied(state), window(4, 7))
            parts.append(net.read(state, window(start, end)).logits)
    return bool((torch.cat(parts) - whole).abs().max() <= 0.01 * (whole.max() - whole.min()))
