"""Trainings on several GPUs or machines: one process each, started by torchrun or `accelerate launch`.

Both set RANK, WORLD_SIZE and LOCAL_RANK. Every process draws other data, and gradients are averaged, so a step reads
``WORLD_SIZE`` times the passages of one process. The first process generates the data that the cache lacks,
writes checkpoints and the result; the others read the same folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, final

import torch
from torch import Tensor, distributed, nn

from stridebench.harness.errors import UsageError

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long processes wait for the first one, which may generate passages for hours."""


@final
@dataclass(frozen=True)
class Workers:
    """The processes of a training.

    Args:
        rank: of this one, from 0.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def of_environment(cls) -> Workers:
        """Those that the launcher tells."""
        texts = {
            key: os.environ.get(key, text) for key, text in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        }
        if not all(text.isdecimal() for text in texts.values()):
            raise UsageError(f"the launcher set {texts}; expected whole numbers")
        workers = cls(*(int(text) for text in texts.values()))
        if not workers.rank < workers.count:
            raise UsageError(f"the launcher set {texts}; RANK must be below WORLD_SIZE")
        return workers

    @property
    def first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def device(self, device: str) -> str:
        """The GPU of this process, where ``cuda`` leaves it open."""
        return f"cuda:{self.local}" if device == "cuda" and self.count > 1 else device

    def join(self, device: str) -> None:
        """Wait for the other processes; alone, do nothing, or raise UsageError if they cannot be reached."""
        if self.count == 1 or distributed.is_initialized():
            return
        cuda = device.startswith("cuda")
        if cuda:
            torch.cuda.set_device(device)
        try:
            distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"the {self.count} processes of this training cannot reach each other ({error}); start them with "
                f"torchrun --nproc-per-node N --no-python stride train ..."
            ) from error

    def leave(self) -> None:
        """End the group."""
        if self.count > 1 and distributed.is_initialized():
            distributed.destroy_process_group()

    def in_turn(self, build: Callable[[], T]) -> T:
        """What every process builds: the first one before the others, which find its files."""
        if self.count == 1:
            return build()
        built = build() if self.first else None
        distributed.barrier()
        return built if built is not None else build()

    def equal(self, model: nn.Module) -> None:
        """Give every process the weights of the first one."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                if tensor.dtype != torch.bool:  # gloo sends none, and masks do not learn
                    distributed.broadcast(tensor, 0)

    def average(self, weights: Iterable[Tensor]) -> None:
        """Replace the gradients of weights by their mean over the processes, in one message a type."""
        if self.count == 1:
            return
        gradients = []
        for weight in weights:
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                gradients.append(weight.grad)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.flatten() for gradient in alike])
            distributed.all_reduce(flat)
            means = torch.split(flat / self.count, [gradient.numel() for gradient in alike])
            for gradient, mean in zip(alike, means, strict=True):
                gradient.copy_(mean.view_as(gradient))

    def decided(self, by_first: bool, device: str) -> bool:
        """Return the decision of the first process."""
        if self.count == 1:
            return by_first
        flag = torch.tensor(int(by_first), device=device)
        distributed.broadcast(flag, 0)
        return bool(flag.item())  # one number a step
