"""What a sampler of another project gives to a proof: a function that accepts or resamples drafts, and its draws."""

from __future__ import annotations

import inspect
import itertools
import math
import random
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stridebench.harness.errors import ContractError, EnumerationLimit, StrideError, UsageError

Tokens = tuple[int, ...]
Request = tuple[float, ...] | None
"""The weights of the outcomes of a draw; None is a number from [0, 1)."""
DRAWS = 256
"""The most draws of one call."""


class SamplerDraws:
    """The random numbers of a sampler under proof; each request is answered by every outcome in turn."""

    def __init__(self, answers: Sequence[float], probe: int, as_array: Callable[[Any], Any]) -> None:
        self._answers, self._probe, self._as_array = answers, random.Random(probe), as_array
        self.requests: list[Request] = []

    def coin(self, probability: float) -> bool:
        """Return True with this probability; above 1 counts as 1.

        Raises:
            ContractError: it is not a number, or negative.
        """
        heads = float(probability)
        if not heads >= 0:
            raise ContractError(f"a coin has the probability {heads}; give a number from 0 to 1")
        return bool(self._answer((min(heads, 1.0), 1 - min(heads, 1.0))) == 0)

    def token(self, weights: Any) -> int:
        """Return an id drawn in proportion to these weights, (V,).

        Raises:
            ContractError: a weight is negative or not a number, or all are 0.
        """
        row = np.asarray(weights, dtype=np.float64).reshape(-1)
        if not (row >= 0).all() or not 0 < row.sum() < math.inf:
            raise ContractError(f"a token is drawn with the weights {row.tolist()}; they are at least 0, and not all 0")
        return int(self._answer(tuple((row / row.sum()).tolist())))

    def uniform(self) -> float:
        """Return a number from [0, 1)."""
        return float(self._answer(None))

    def uniforms(self, n: int) -> Any:
        """Return n independent numbers from [0, 1), as the arrays that the function is given."""
        return self._as_array(np.array([self.uniform() for _ in range(n)]))

    def _answer(self, weights: Request) -> Any:
        """Return the next answer, or a probe behind the last one: an index where there are weights, else a number."""
        if len(self.requests) == DRAWS:
            raise EnumerationLimit(
                f"a call takes over {DRAWS} draws; a loop that draws until one is accepted has no last outcome. "
                f"Draw from the residual distribution with draws.token(weights)."
            )
        self.requests.append(weights)
        if len(self.requests) <= len(self._answers):
            return self._answers[len(self.requests) - 1]
        number = self._probe.random()
        if weights is None:
            return number
        return next(i for i, total in enumerate(itertools.accumulate(weights)) if number < total or total >= 1 - 1e-12)


@dataclass(frozen=True)
class Sampler:
    """A verifier under proof.

    Args:
        verify: ``verify(tokens, q, p, draws)``, or with ``parents`` behind the tokens for a tree; returns emitted ids.
        propose: ``propose(tokens, q, draws)`` returns the next draft, or None to end it; the last row of q is its own.
            Without it, drafts are drawn from q.
        parents: the parent of each drafted token, -1 for the prompt; None is a chain of ``drafts`` tokens.
        distinct: siblings are drawn without replacement.
        arrays: numpy, or torch for tensors of fp64.
        folder: of its file, or None if it was not read from one.
    """

    name: str
    verify: Callable[..., Any]
    propose: Callable[..., Any] | None = None
    parents: Tokens | None = None
    drafts: int = 2
    distinct: bool = False
    arrays: str = "numpy"
    about: str = ""
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.arrays not in ("numpy", "torch"):
            raise UsageError(f"{self.name}: arrays is {self.arrays!r}; it is numpy or torch")
        if not 1 <= len(self.tree) <= 4 or any(not -1 <= parent < node for node, parent in enumerate(self.tree)):
            raise UsageError(
                f"{self.name}: the draft has the parents {self.tree}; give 1 to 4 tokens, each behind its parent, "
                f"and -1 for those behind the prompt"
            )

    @cached_property
    def tree(self) -> Tokens:
        """The parent of each drafted token, of a chain too."""
        return tuple(range(-1, self.drafts - 1)) if self.parents is None else self.parents

    def as_array(self, values: Any) -> Any:
        """Return these numbers as the arrays that the function is given."""
        if self.arrays == "numpy":
            return np.array(values)
        import torch

        return torch.tensor(np.asarray(values))


def sampler(**settings: Any) -> Callable[[Callable[..., Any]], Sampler]:
    """Mark a function of a file as a sampler to prove, with the settings of `Sampler`; its docstring says what it is.

        @sampler(drafts=3)
        def my_rule(tokens, q, p, draws): ...

    Raises:
        UsageError: the settings describe no draft of 1 to 4 tokens.
        TypeError: a setting has another name.
    """

    def marked(verify: Callable[..., Any]) -> Sampler:
        about = (verify.__doc__ or "").strip().partition("\n")[0]
        return Sampler(verify.__name__, verify, about=about, **settings)

    return marked


_IMPORTS: dict[Path, tuple[list[str], dict[str, ModuleType]]] = {}
"""By folder of a file: its ``sys.path``, and the modules that it has imported from what is there for it alone."""


@contextmanager
def imports_beside(folder: Path | None) -> Iterator[None]:
    """Let imports find the modules of this folder, and put them aside at the end: another may have others so named."""
    if folder is None:
        yield
        return
    before, known = sys.path[:], set(sys.modules)
    sys.path[:], modules = _IMPORTS.get(folder, ([*before, str(folder)], {}))
    sys.modules.update(modules)
    try:
        yield
    finally:
        added = {Path(place).absolute() for place in sys.path if place not in before}
        new = [name for name in list(sys.modules) if name not in known and added & _places(name)]
        _IMPORTS[folder] = (sys.path[:], {name: sys.modules[name] for name in new})
        sys.path[:] = before
        for name in new:
            del sys.modules[name]


def _places(name: str) -> set[Path]:
    """Return the folders that hold the file or the package that a module is or belongs to."""
    module = sys.modules.get(name.partition(".")[0])
    return {Path(place).parent for place in (*getattr(module, "__path__", ()), getattr(module, "__file__", None) or "")}


def read_samplers(target: str) -> Iterator[Sampler]:
    """Yield the samplers of ``FILE.py``, of each file of ``FOLDER``, or the one of ``FILE.py:FUNCTION``.

    A function that is named here needs no mark: it is proved on chains of two drafts.

    Raises:
        UsageError: there is no such file or function, it cannot be imported, or no function of it is marked.
    """
    if Path(target).is_dir():
        if not (paths := sorted(Path(target).glob("*.py"))):
            raise UsageError(f"the folder {target} holds no file FILE.py; write one with: stride new verifier NAME")
        for path in paths:
            yield from read_samplers(str(path))
        return
    text, _, name = target.partition(".py:")
    path = Path(f"{text}.py" if name else text)
    if not path.is_file():
        raise UsageError(f"there is no file of a sampler at {path}; write one with: stride new verifier NAME")
    folder = path.parent.resolve()
    try:
        with imports_beside(folder):
            names = runpy.run_path(str(path))
    except StrideError:
        raise
    except Exception as error:
        raise UsageError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    samplers = {key: replace(value, folder=folder) for key, value in names.items() if isinstance(value, Sampler)}
    if not name and samplers:
        yield from samplers.values()
    elif name in samplers:
        yield samplers[name]
    elif inspect.isfunction(names.get(name)):
        yield Sampler(name, names[name], folder=folder)
    else:
        functions = [key for key, value in names.items() if inspect.isfunction(value) and value is not sampler]
        known = ", ".join([*samplers, *functions]) or "none"
        asked = (
            f"no function {name}" if name else "no function that @sampler() marks; mark one, or name it: FILE.py:NAME"
        )
        raise UsageError(f"{path} has {asked}; its functions: {known}")
