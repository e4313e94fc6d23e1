"""Samplers with a planted bias, and correct ones beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.draft import Path
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.sampling import Sampling

PLAIN = Sampling(1.0)


@dataclass(frozen=True)
class Setting:
    """A trained model, its drafter, and what it is asked.

    Args:
        drafter: whose distribution the bets use; "": none.
    """

    backbone: str
    task: str
    prompts: int
    repetitions: int
    tokens: int
    drafter: str = ""
    sampling: Sampling = PLAIN


DIGITS = Setting("embedded-digits-l", "digits", 10, 3, 64, "embedded-digits-s")
PICTURES = Setting("embedded-image-8x8:guidance=3", "emoji_scenes", 5, 3, 72)
NUCLEUS = replace(PICTURES, sampling=Sampling(1.0, top_p=0.9))
PROGRAMS = Setting("embedded-code", "programs", 12, 2, 64)


class ReusedCoins(SeededDraws):
    """The correction token is drawn with the number that drew the draft which it replaces."""

    reused = "draft"

    def __init__(self, *key: Any) -> None:
        super().__init__(*key)
        self._numbers: list[Float[Tensor, " 1"]] = []
        self._stop = 0

    def uniforms(self, n: int, stream: str) -> Float[Tensor, " n"]:
        values = super().uniforms(n, stream)
        if stream == self.reused:
            self._numbers.extend(values.split(1))
        if stream == "resid":
            values = self._numbers[self._stop] if self._stop < len(self._numbers) else values
            self._numbers = []
        return values

    def path(self, accept: Float[Tensor, " K"], parents: Tensor | None = None) -> Path:
        path = super().path(accept, parents)
        self._stop = int(path.stop)
        return path


class ReusedTest(ReusedCoins):
    """The correction token is drawn with the number that rejected the draft."""

    reused = "accept"


@dataclass(frozen=True)
class Sampler:
    """A method on a setting, and what is wrong with it.

    Args:
        mutants: injected while it decodes.
        sampling: with which it decodes in place of the setting's.
        draws: the class of its draws.
        biased: whether its tokens come from another distribution.
    """

    name: str
    setting: Setting
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    mutants: tuple[Mutant, ...] = ()
    sampling: Sampling | None = None
    draws: type[SeededDraws] = SeededDraws
    biased: bool = True


CHAIN = {"drafter": "embedded-digits-s", "gamma": 4}
TREE = {"drafter": "embedded-digits-s", "widths": (3, 2, 1)}


def chain(name: str, *mutants: Mutant, **rest: Any) -> Sampler:
    return Sampler(name, DIGITS, "speculative", CHAIN, mutants, **rest)


def tree(name: str, *mutants: Mutant, **rest: Any) -> Sampler:
    return Sampler(name, DIGITS, "specinfer", TREE, mutants, **rest)


def planted(where: str, old: str, new: str) -> Mutant:
    return Mutant(f"stridebench.{where}", old, new, "planted")


JUDGE, ACCEPTANCE = (f"methods.verifiers.rejection:{name}" for name in ("judge", "acceptance_probs"))
RATIO = "(px / draft_probs(x, q).to(p.dtype))"
CORRECTED_FROM_P = planted(JUDGE, "residual(probs, ", "(lambda p, q: p)(probs, ")
LOST_Q = planted("methods.speculative:Speculative._verified", "draft.probs, p, ", "None, p, ")

CORRECT = (
    Sampler("autoregressive", DIGITS, "autoregressive", biased=False),
    chain("speculative", biased=False),
    chain("speculative, the draft's distribution taken for a point mass", LOST_Q, biased=False),
    tree("specinfer", biased=False),
    Sampler("sjd, guided pictures", PICTURES, "sjd", {"window": 8}, biased=False),
    Sampler("sjd, guided pictures, top-p 0.9", NUCLEUS, "sjd", {"window": 8}, biased=False),
    Sampler("medusa, exact acceptance, programs", PROGRAMS, "medusa", biased=False),
)
BIASED = (
    chain("residual forgotten", CORRECTED_FROM_P),
    chain("p and q swapped in the test", planted(ACCEPTANCE, RATIO, "(draft_probs(x, q).to(p.dtype) / px)")),
    chain("acceptance by sqrt(p / q)", planted(ACCEPTANCE, RATIO, f"{RATIO}.sqrt()")),
    chain("the draft's distribution is lost, corrections from p", LOST_Q, CORRECTED_FROM_P),
    chain("draft and correction share a random number", draws=ReusedCoins),
    chain("test and correction share a random number", draws=ReusedTest),
    chain(
        "another q is recorded than was sampled",
        planted(
            "methods.drafters.draft_model:ModelDrafter.propose",
            "probs.append(q)",
            "probs.append((q + 0.1) / (q + 0.1).sum())",
        ),
    ),
    chain("bonus row after a rejection", planted(JUDGE, "p.index_select(0, stop.reshape(1))", "p[-1:]")),
    chain(
        "a rejected draft's entry stays in the cache",
        planted(
            "harness.core.session:Session.commit",
            "self._cache.keep(self._valid, read.path)",
            "self._cache.keep(self._valid, (*read.path, len(read.path))[: len(self.draft)])",
        ),
    ),
    chain("temperature 0.95 in place of 1", sampling=Sampling(0.95)),
    tree(
        "nodes of a tree one position too far",
        planted("harness.core.session:Session.forward", "seen.sum(1) - 1", "seen.sum(1)"),
    ),
    tree(
        "earlier siblings of a tree forgotten",
        planted("methods.verifiers.tree:multi_step", "residual(residuals, q[node].to(p.dtype))", "residuals"),
    ),
    Sampler(
        "guidance dropped in the second row of a pass",
        PICTURES,
        "sjd",
        {"window": 8},
        (
            planted(
                "harness.backbones.slots.guided:GuidedCache._joined",
                "mixed = torch.lerp(other.logits, logits[plain:], self._scale)",
                "mixed = torch.lerp(other.logits, logits[plain:], self._scale); mixed[1:2] = logits[plain:][1:2]",
            ),
        ),
    ),
    Sampler(
        "top-p taken twice",
        NUCLEUS,
        "autoregressive",
        {},
        (
            planted(
                "harness.core.run:Run.probs",
                "return warp(logits, self.sampling)",
                "return warp(warp(logits, self.sampling).log(), self.sampling)",
            ),
        ),
    ),
    Sampler("SJD++ as published, tau 0.25", PICTURES, "sjdpp", {"window": 8, "reuse": "paper", "tau": 0.25}),
    Sampler("Medusa's typical acceptance", PROGRAMS, "medusa", {"acceptance": "typical"}),
)
