"""The contract of a method: parameters, a claim, `start` and `step`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from stridebench.harness.core.capabilities import Grid, Requirement, Tap
from stridebench.harness.errors import printable_line
from stridebench.harness.registry import METHODS

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from stridebench.harness.core.draft import Acceptance, ExpectedSteps, Fill
    from stridebench.harness.core.draws import Stream
    from stridebench.harness.core.run import Run

S = TypeVar("S")


class Claim(Enum):
    """The claim of a method about its output, against the target decoded autoregressively."""

    SAME_LAW = "the same distribution at every temperature"
    SAME_GREEDY = "the same tokens at T = 0; not run above"
    DECLARED = "another distribution, which the method states row by row"
    APPROXIMATE = "another distribution, by design"

    @property
    def lossless(self) -> bool:
        """Return whether the output is that of the target, at T = 0 at least."""
        return self in (Claim.SAME_LAW, Claim.SAME_GREEDY)


Memory = Literal["prompt", "run"]
"""The field ``memory`` of a method that copies: from one prompt and its output, or from earlier outputs too."""


@dataclass(frozen=True)
class Mutant:
    """A bug that is injected into a real function while a check runs; the check must catch it.

    Args:
        where: the function whose source is patched, as "package.module:qualified.name".
        old: text on exactly one of its lines.
        new: the text that replaces it.
        why: the mistake in words.
        state: of a bug in the cache of the target: the kind of model that shows it (see `Tabular`); "" else.
    """

    where: str
    old: str
    new: str
    why: str
    state: str = ""


class Method(ABC, Generic[S]):
    """A decoding algorithm: a frozen dataclass whose fields are its parameters.

    Class attributes:
        source: the paper, down to the algorithm.
        exact_at: for an approximate method, the setting at which it is exact.
        mutants: bugs that `stride verify` must catch.
        pinned: streams whose draws enter no recorded distribution. The proof that a run does answers them by a few
            seeds; the distribution must be the same for each.
        one_branch: it reads rows of one branch, so that a guided backbone, which has two, cannot run it.
        loads: kinds of weights that it loads in addition to a drafter, by the field with their name.
    """

    source: ClassVar[str] = ""
    exact_at: ClassVar[str] = ""
    mutants: ClassVar[tuple[Mutant, ...]] = ()
    pinned: ClassVar[frozenset[Stream]] = frozenset()
    one_branch: ClassVar[bool] = False
    loads: ClassVar[Mapping[str, str]] = {}

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """Return the claim; a class attribute in most methods, a property if it depends on a parameter."""

    @property
    def requirements(self) -> frozenset[Requirement]:
        """Return the requirements of the backbone; a class attribute if they are always the same."""
        return frozenset()

    def cell_order(self, grid: Grid) -> Sequence[int]:
        """Return the cells of a picture, by raster index, in the order in which an order-free target is decoded.

        The target's distribution is then the chain rule in that order, one cell a pass. Other targets are raster.
        """
        return range(grid.length)

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Return the layers whose hidden rows it reads as ``run.target.hidden``; a class attribute if always equal."""
        return ()

    @property
    def reference(self) -> Method[Any] | None:
        """Return the reference setting, or None if the reference is the target decoded autoregressively."""
        return None

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        """Return kinds and names of the weights of ``loads``; without them cells are skipped."""
        return [(kind, getattr(self, field)) for field, kind in self.loads.items()]

    @property
    def remembers(self) -> bool:
        """Return whether its drafts depend on the outputs of earlier prompts (`Run.memory`): if ``memory`` is "run"."""
        return vars(self).get("memory") == "run"

    def drafters(self) -> Sequence[str]:
        """Return the names of the models that it opens as drafters; by default its field ``drafter``, if any."""
        name = vars(self).get("drafter")
        return (name,) if isinstance(name, str) and name else ()

    def probes(self) -> Mapping[str, Sequence[tuple[int, Method[Any]]]]:
        """Return the drafters by the price of whose passes it sizes its drafts (`Run.costs`).

        Each has settings whose decodes show that price, with the rows that a pass of the drafter reads there.
        """
        return {}

    @property
    def drafter_shrink(self) -> int:
        """Return how many times smaller a drafter's pictures are than the target's, along each side; 1 if as large."""
        return 1

    @abstractmethod
    def start(self, run: Run) -> S:
        """Return a new state for one prompt, which must be copyable, or ``None`` if the method has no state."""

    @abstractmethod
    def step(self, run: Run, state: S) -> Acceptance | Fill:
        """Draft, score with one ``run.target.forward``, verify; or read ``run.canvas``, and say what to fill."""

    def foresee(self, run: Run, text: Sequence[int], p: Float[Tensor, "N V"]) -> Mapping[Self, ExpectedSteps]:
        """Return the steps that each setting worth a comparison would take to emit a known text; by default no setting.

        Args:
            run: has read the prompt.
            text: N ids, drawn from the target.
            p: the target's distributions; row n is p(. | prompt, text[:n]).
        """
        return {}

    @classmethod
    def variants(cls) -> Sequence[Self]:
        """Return the settings that `stride verify` proves; by default the default one."""
        return (cls(),)


def parameters(method: Method[Any]) -> dict[str, object]:
    """Return name and value of each parameter."""
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]  # a dataclass


def label(method: Method[Any]) -> str:
    """Return the registered name and the parameters that differ from their defaults, in one line."""
    usual = {f.name: f.default for f in fields(method)}  # type: ignore[arg-type]  # every method is a dataclass
    return setting_label(METHODS.name_of(type(method)), parameters(method), usual)


def setting_label(name: str, params: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return a method's name and the parameters that differ from their defaults, in one line."""
    changed = {key: value for key, value in params.items() if key not in defaults or value != defaults[key]}
    settings = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changed.items()]
    return printable_line(" ".join([name, *settings]))
