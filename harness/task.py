"""The contract of a task: prompts, and how an output is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Prompt:
    """One prompt: text for backbones with a tokenizer, or token ids.

    Args:
        id: unique in its task. text: exactly what is tokenised, or None when ``tokens`` holds the ids.
        category: for tables by category. data: what the scorer needs (a test, an answer); never shown to a model.
    """

    id: str
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    category: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class Task(ABC):
    """A data set: its prompts in a fixed order and its own score of an output.

    A concrete task is a frozen dataclass whose fields are its parameters, registered with
    ``TASKS.register(name)``; ``name`` is set by the registry's user from that call.
    """

    source: ClassVar[str] = ""
    modality: ClassVar[str] = "text"
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names that ``score`` returns; empty: only agreement and log-probability are measured."""
    runs_code: ClassVar[bool] = False
    """``score`` executes model output: called only when the user has opted in."""
    eos: ClassVar[bool] = True
    """False: fixed-length outputs, end-of-text is an ordinary token."""

    @abstractmethod
    def prompts(self) -> Sequence[Prompt]:
        """All prompts, always in the same order.

        Raises:
            UsageError: the data is missing; says what to put where.
        """

    def score(self, prompt: Prompt, text: str, tokens: Sequence[int]) -> dict[str, float]:
        """Score one output (text: decoded, without the prompt); keys are ``metrics``. Pure, never timed."""
        return {}
