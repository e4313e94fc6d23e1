"""Passes of fixed shapes over one sequence: captured by bucket of rows and entries, and replayed.

A window of N rows is padded to a bucket of ``ROWS``. Attention reads the first T slots, T a power of two, and a mask
hides those that are free or behind a row. New entries go where a tensor on the device says, so the capture holds no
number that changes. Padding writes behind the sequence, where nothing reads before it is written again. A window
without a bucket takes the plain path over the same slots, and a warning says so once.

A capture is a CUDA graph, or a recorder without a GPU. A graph replays the kernels of its capture with the same
shapes, numbers and addresses. Whatever the host would have chosen anew is stale then, without an error. The recorder
computes each replay anew on CPU tensors and compares it with the capture, operation by operation, so that such a
mistake is an error on a machine without a GPU.
"""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, final

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stridebench.harness.backbones.slots.net import CacheLayer, Net, SlotInputs, SlotLayer, Slots, Tapped
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.errors import ContractError, GraphWarning

WARM_UPS = 3
"""Runs before a CUDA capture, in which libraries choose their kernels."""
READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
"""Operations whose result the host must wait for; a CUDA capture refuses them."""

Compute = Callable[[], tuple[Tensor, ...]]


class Capture(Protocol):
    """A captured computation."""

    def replay(self) -> tuple[Tensor, ...]:
        """Compute again; the results lie where those of the last replay lay."""


class CudaCapture:
    """A CUDA graph of a computation that reads and writes tensors of fixed addresses.

    It runs some times more, so it must be idempotent. Graphs of one sequence share a pool of memory.
    """

    def __init__(self, compute: Compute, pool: Any) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                compute()
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._results = compute()

    def replay(self) -> tuple[Tensor, ...]:
        self._graph.replay()
        return self._results


class Operation(NamedTuple):
    """One operation of a computation: its name, its arguments as `_described`, and the shapes of its results."""

    name: str
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


class RecordedCapture:
    """A stand-in of a CUDA graph on CPU tensors; ContractError if the computation reads a result on the host."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._operations, self._results = _recorded(compute)

    def replay(self) -> tuple[Tensor, ...]:
        """Compute; ContractError if an operation differs from the capture's in name, shape, number or address."""
        operations, results = _recorded(self._compute)
        for index, (now, before) in enumerate(zip(operations, self._operations, strict=False)):
            if now != before:
                raise ContractError(f"operation {index} of a captured pass is {now}, and was {before}")
        if len(operations) != len(self._operations):
            raise ContractError(f"a captured pass has {len(operations)} operations, and had {len(self._operations)}")
        for kept, new in zip(self._results, results, strict=True):
            kept.copy_(new)
        return self._results


def _recorded(compute: Compute) -> tuple[list[Operation], tuple[Tensor, ...]]:
    with _Recorder() as recorder:
        results = compute()
    return recorder.operations, results


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch types neither
    """Writes down every operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._made: dict[int, int] = {}
        self._alive: list[Tensor] = []  # so that no tensor has the id of an earlier one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if any(read in name.split(".")[-2] for read in READS):
            raise ContractError(f"a captured pass calls {name}, whose result the host waits for; keep it on the device")
        arguments = tuple(self._described(argument) for argument in (*args, *sorted(kwargs.items())))
        out = func(*args, **kwargs)
        results = out if isinstance(out, tuple | list) else (out,)
        tensors = [result for result in results if isinstance(result, Tensor)]
        for tensor in tensors:
            self._made.setdefault(id(tensor), len(self._alive))
            self._alive.append(tensor)
        self.operations.append(Operation(name, arguments, tuple(_shape(tensor) for tensor in tensors)))
        return out

    def _described(self, argument: Any) -> Any:
        """Return a number as it is; a tensor by its shape, and by its address or by its place among those made here."""
        if isinstance(argument, Tensor):
            place = self._made.get(id(argument))
            return _shape(argument), ("at", _address(argument)) if place is None else ("made", place)
        if isinstance(argument, list | tuple):
            return tuple(self._described(part) for part in argument)
        return argument


def _shape(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's first element; of a packed matrix, which lacks one, that of the object."""
    return tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)


ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Buckets of a window's rows."""
ENTRIES = 256
"""The smallest bucket of slots that attention reads; each next one is twice as large."""


class CaptureShape(NamedTuple):
    """The shape of a capture: N rows, T slots, a mask of the caller's or a causal one, and the tapped layers."""

    rows: int
    entries: int
    masked: bool
    taps: tuple[int, ...]


class FixedLayer(CacheLayer):
    """The slots of one layer as a captured pass sees them: places of the N new entries, and the first T entries."""

    def __init__(self, layer: SlotLayer, places: Int[Tensor, " N"], entries: int) -> None:
        super().__init__()
        self.keys, self.values = layer.keys, layer.values
        self._places, self._entries = places, entries
        self.is_initialized = True

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._places, keys)
        self.values.index_copy_(2, self._places, values)
        return self.keys[:, :, : self._entries], self.values[:, :, : self._entries]

    def get_seq_length(self) -> int:
        return self._entries


class _CapturedPass:
    def __init__(self, net: Net, slots: Slots, shape: CaptureShape, like: Tensor) -> None:
        self._net, self._slots, self._shape = net, slots, shape
        device = like.device
        self._tokens = torch.zeros(shape.rows, dtype=torch.long, device=device)
        self._positions, self._start = torch.zeros_like(self._tokens), torch.zeros_like(self._tokens[:1])
        self._counted = torch.arange(shape.rows, device=device)
        self._places = torch.arange(shape.entries, device=device)
        self._hidden = like.new_full((shape.rows, shape.entries), float("-inf"))
        self._sees = torch.zeros(shape.rows, shape.entries, dtype=torch.bool, device=device)
        self._capture: Capture | None = None

    def compute(self) -> tuple[Tensor, ...]:
        shape, places = self._shape, self._start + self._counted
        own = places[:, None]  # seen by padding too, so that a sliding window leaves no row empty
        sees = self._sees | (self._places == own) if shape.masked else self._places <= own
        layers = [FixedLayer(layer, places, shape.entries) for layer in self._slots.layers]
        inputs = SlotInputs(self._tokens, self._positions, self._hidden.masked_fill(sees, 0.0), layers)
        if not shape.taps:
            return (self._net(inputs, shape.rows),)
        assert isinstance(self._net, Tapped), "the session asked for taps that the backbone has"
        rows = self._net.tapped(inputs, shape.rows, shape.taps)
        assert rows.hidden is not None
        return rows.logits, rows.hidden

    def run(self, window: Window, pool: Any) -> Rows:
        count = len(window.tokens)
        self._tokens[:count] = window.tokens
        self._positions[:count] = window.positions
        self._start.fill_(self._slots.length)
        if window.sees is not None:
            self._sees.zero_()
            self._sees[:, : max(window.base, 1)] = True  # padding reads entry 0, so that no row is empty
            self._sees[:count, window.base : window.base + window.sees.shape[1]] = window.sees
        if self._capture is None:
            cuda = self._tokens.is_cuda
            self._capture = CudaCapture(self.compute, pool) if cuda else RecordedCapture(self.compute)
        logits, *hidden = self._capture.replay()
        rows = logits[count - window.rows : count].clone()  # the next replay overwrites what this one gave
        return Rows(rows, hidden[0][:count].clone() if hidden else None)


@final
class FixedSlots:
    """Slots of one sequence whose addresses never change, and the passes captured over them."""

    def __init__(self, net: Net, context: int, like: Tensor) -> None:
        self.slots = Slots(net.layers, context, first=context + ROWS[-1])
        self._net, self._like = net, like
        self._passes: dict[CaptureShape, _CapturedPass] = {}
        self._pool = torch.cuda.graph_pool_handle() if like.is_cuda else None

    def shape(self, window: Window) -> CaptureShape | str | None:
        """Return the shape to replay for a window, or a text that says why the plain path takes it, or None.

        The prompt, which is read once, gated rows, whose net serves one pass, and rows that read an earlier pass are
        never captured, without a text.
        """
        count = len(window.tokens)
        beside = window.gate is not None or window.features is not None
        if not window.rows or beside or not self.slots.layers[0].is_initialized:
            return None
        rows = next((size for size in ROWS if size >= count), None)
        if rows is None:
            return f"a window of {count} rows exceeds the largest captured one of {ROWS[-1]}"
        entries = ENTRIES
        while entries < self.slots.length + rows:
            entries *= 2
        room = self.slots.context + ROWS[-1]
        return CaptureShape(rows, min(entries, room), window.sees is not None, window.taps)

    def run(self, shape: CaptureShape, window: Window) -> Rows:
        if shape not in self._passes:
            self._passes[shape] = _CapturedPass(self._net, self.slots, shape, self._like)
        return self._passes[shape].run(window, self._pool)


@final
class Graphs:
    """Lends `FixedSlots` to the sequences of one model; those of a sequence that is over serve the next one."""

    def __init__(self, context: int, like: Tensor) -> None:
        self._context, self._like = context, like
        self._free: dict[int, list[FixedSlots]] = defaultdict(list)
        self._said = False

    def lend(self, net: Net, to: Any) -> FixedSlots:
        """Return empty slots over a net, which must live as long as this object, until ``to`` is freed."""
        free = self._free[id(net)]
        fixed = free.pop() if free else FixedSlots(net, self._context, self._like)
        fixed.slots.length = 0
        weakref.finalize(to, free.append, fixed)
        return fixed

    def say(self, reason: str) -> None:
        if not self._said:
            self._said = True
            warnings.warn(f"{reason}; such passes are not captured, which is slower", GraphWarning, stacklevel=4)
