"""A computation of fixed shapes that is captured once and replayed: a CUDA graph, or a recorder where there is no GPU.

A graph replays the kernels of its capture with the same shapes, numbers and addresses. Whatever the host would have
chosen anew is stale then, without an error. The recorder computes each replay anew on CPU tensors and compares it with
the capture, operation by operation, so that such a mistake is an error on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stridebench.harness.errors import ContractError

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
    """A CUDA graph.

    Args:
        compute: reads and writes tensors of fixed addresses; it runs some times more, so it must be idempotent.
        pool: memory that the graphs of one sequence share (`torch.cuda.graph_pool_handle`).
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
        """Launch the graph."""
        self._graph.replay()
        return self._results


class Operation(NamedTuple):
    """One operation of a computation: its name, its arguments as `_described`, and the shapes of its results."""

    name: str
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


class RecordedCapture:
    """A stand-in of a CUDA graph on CPU tensors.

    Args:
        compute: as of a `CudaCapture`.

    Raises:
        ContractError: the computation reads a result on the host.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._operations, self._results = _recorded(compute)

    def replay(self) -> tuple[Tensor, ...]:
        """Compute, and write the results where the capture's lie.

        Raises:
            ContractError: an operation differs from the capture's in name, shape, number or address.
        """
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
        """A number as it is; a tensor by its shape, and by its address or by its place among those made here."""
        if isinstance(argument, Tensor):
            place = self._made.get(id(argument))
            return _shape(argument), ("at", _address(argument)) if place is None else ("made", place)
        if isinstance(argument, list | tuple):
            return tuple(self._described(part) for part in argument)
        return argument


def _shape(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _address(tensor: Tensor) -> int:
    """Of a tensor's first element; of a packed matrix, which has none, that of the object."""
    return tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
