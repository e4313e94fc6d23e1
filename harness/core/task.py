"""The contract of a task: prompts, how they are sampled, and how an output is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from stridebench.harness.record.outputs import Output


@dataclass(frozen=True)
class Prompt:
    """One prompt: text for backbones with a tokenizer, or token ids; with a condition if the model takes one.

    Args:
        id: unique in its task.
        text: exactly the text that is tokenised, or None if ``tokens`` holds the ids.
        tokens: token ids.
        condition: the condition of the model besides its tokens: samples of a waveform, points of a surface.
        category: for tables by category.
        cluster: name of what the prompt shares with others whose results go with its own: a template, a topic, a
            conversation. Intervals resample clusters; "" is a prompt alone.
        data: data for the scorer (a test, an answer); a model never reads it.
        messages: a conversation of {"role", "content"}, which a model reads instead of ``text``, through its chat
            template.
        last: a model reads only the last so many tokens of ``text``; 0 for all of it.
        max_tokens: output tokens at most, if the data says so; 0 leaves it to the run.
    """

    id: str
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    condition: npt.NDArray[Any] | None = None
    category: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    last: int = 0
    max_tokens: int = 0
    cluster: str = ""

    def budget(self, most: int) -> int:
        """Return the output tokens at most in a run that allows ``most``."""
        return min(most, self.max_tokens or most)

    def cut(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens of ``text`` that are read.

        Raises:
            UsageError: there are fewer than ``last``.
        """
        if len(ids) < self.last:
            raise UsageError(
                f"prompt {self.id!r} has {len(ids)} tokens and {self.last} are to be read: take a shorter length"
            )
        return tuple(ids[len(ids) - self.last :]) if self.last else tuple(ids)

    def shown(self) -> str:
        """Return the prompt as a view prints it: its text, its messages with their roles, or nothing."""
        if self.text is not None:
            return self.text
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.messages)


@dataclass(frozen=True)
class Sampling:
    """How logits are warped. T = 0 is greedy: a point mass on the argmax, ties to the lowest id.

    Args:
        temperature: T >= 0.
        top_k: 0 keeps all.
        top_p: in (0, 1]; 1 keeps all.
        order: temperature_first divides by T, then filters (the usual order); filter_first filters the
            unscaled logits, then divides (BPT's).
        min_p: in [0, 1]; tokens less probable than this share of the largest probability are cut off, after top-k and
            top-p (Nguyen et al. 2024, arXiv:2407.01082); 0 keeps all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    order: Literal["temperature_first", "filter_first"] = "temperature_first"
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise UsageError(
                f"sampling needs temperature >= 0, top_k >= 0, 0 < top_p <= 1 and 0 <= min_p <= 1; found temperature "
                f"{self.temperature:g}, top_k {self.top_k}, top_p {self.top_p:g}, min_p {self.min_p:g}"
            )
        if self.order not in ("temperature_first", "filter_first"):
            raise UsageError(f"sampling order is {self.order!r}; use temperature_first or filter_first")


class Task(ABC):
    """A data set: its prompts in a fixed order and its score of an output.

    A concrete task is a frozen dataclass whose fields are its parameters, registered with
    ``TASKS.register(name)``; ``name`` is set by the registry's user from that call.
    """

    source: ClassVar[str] = ""
    modality: ClassVar[str] = "text"
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names that ``score`` returns; empty: only agreement and log-probability are measured."""
    optional_metrics: ClassVar[tuple[str, ...]] = ()
    """Those of ``metrics`` that ``score`` leaves out if they do not apply to a prompt."""
    runs_code: ClassVar[bool] = False
    """``score`` executes model output: called only when the user has opted in."""
    eos: ClassVar[bool] = True
    """False: fixed-length outputs, end-of-text is an ordinary token."""
    stops: tuple[str, ...] = ()
    """Texts that end an output: it is cut after the token that completes one. A property if parameters decide."""
    set_metrics: ClassVar[tuple[str, ...]] = ()
    """Names that ``score_set`` returns."""
    optional_set_metrics: ClassVar[tuple[str, ...]] = ()
    """Those of ``set_metrics`` that ``score_set`` leaves out if they do not apply, or nobody asked for them."""

    @abstractmethod
    def prompts(self) -> Sequence[Prompt]:
        """Return all prompts, always in the same order.

        Raises:
            UsageError: the data is missing; says what to put where.
        """

    def reading(self, prompts: Sequence[Prompt]) -> str:
        """Say in a line what these prompts were read from, or "" if the name of the task says it."""
        return ""

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Score one output, decoded and without the prompt. Pure, never timed.

        Returns:
            A finite number for each of ``metrics``. Anything else makes the sample a failed one.
        """
        return {}

    def regions(self, prompt: Prompt, output: Output, cells: tuple[int, int]) -> Sequence[str]:
        """Return the content of each of a picture's rows x columns ``cells``, in raster order; empty if unknown."""
        return ()

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Score all outputs of a cell together (FID, diversity, sub-scores by category). Pure, never timed.

        A metric that needs more outputs, or whose weights are absent, has the value None, and `SetScore.reason` says
        why. It is never replaced by another. One that is left out, and is not optional, is a failed score. This is not
        called if the score of an output has failed.
        """
        return {}


@dataclass(frozen=True, eq=False)
class Scored:
    """A scored output with its prompt."""

    prompt: Prompt
    repetition: int
    output: Output
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Stored:
    """An output of a run.

    Args:
        prompt: it answers.
        repetition: 0, 1, ...
        content: the text, or the file of a picture or mesh.
    """

    prompt: Prompt
    repetition: int
    content: str | Path

    def text(self) -> str:
        """Return the output, or raise UsageError if it is not a text."""
        if isinstance(self.content, Path):
            raise UsageError(f"the output of {self.prompt.id} is the file {self.content.name}; this layout takes texts")
        return self.content

    def picture(self) -> Path:
        """The file of a picture. UsageError: it is something else."""
        if not isinstance(self.content, Path) or self.content.suffix != ".png":
            raise UsageError(f"the output of {self.prompt.id} is not a picture; this layout takes pictures")
        return self.content


class Layout(ABC):
    """The files that an official evaluation reads and writes; registered with ``LAYOUTS.register(name)``."""

    @abstractmethod
    def write(self, outputs: Sequence[Stored], folder: Path) -> str:
        """Write the outputs of a cell into an empty folder; returns the command that judges them.

        Raises:
            UsageError: the outputs are of another kind, or of prompts that the evaluation does not know.
        """

    def read(self, files: Mapping[str, Path], outputs: Sequence[Stored]) -> dict[str, SetScore]:
        """Return the scores in files of results.

        Args:
            files: by the name before ``=``; "" if there is none.
            outputs: of the cell.

        Raises:
            UsageError: a file is malformed, or of other prompts or outputs.
        """
        raise UsageError(f"{type(self).__name__} has no results to read; see `stride exchange attach --help`")


@dataclass(frozen=True)
class SetScore:
    """A figure of a set of outputs.

    Args:
        value: None if it could not be computed; ``reason`` says why.
        n: number of outputs.
        failures: outputs that could not be scored.
        low: lower bound of a 95 % interval, or None if there is none.
        high: its upper bound.
        reason: why there is no value.
    """

    value: float | None
    n: int
    failures: int = 0
    low: float | None = None
    high: float | None = None
    reason: str = ""
