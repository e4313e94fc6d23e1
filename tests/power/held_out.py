"""`python -m tests.power.held_out [FILE]`: methods as a researcher might write them, and the words they get.

18 of them are biased and five are exact. Each is enumerated on the fixed cases of `stride verify` and on random ones up
to the first that shows a bias, decodes a small run that proves it and audits its tokens, and is audited once more.
Writes a results file such as ``reports/data/results/held_out.yaml``; prints each row as it is measured.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draft import Path as TokenPath
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import warp
from stridebench.harness.discover import load_all
from stridebench.harness.errors import EnumerationLimit, UsageError
from stridebench.harness.proof.cases import Case, cases_to_verify
from stridebench.harness.proof.distance import DRAWN, WHOLE, Effort, measure
from stridebench.harness.proof.prove import EXACT, foreign_randomness
from stridebench.harness.proof.random_cases import random_case
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import ModelDrafter
from stridebench.methods.verifiers.rejection import acceptance_probs, judge, residual, verify_chain
from tests.results import document, save
from tests.support.cli import stride
from tests.support.one_by_one import OneByOne, register


def normal(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Chain(Method[ModelDrafter]):
    """Speculative sampling, written anew; what is wrong with each of its children stands in one method."""

    drafter: str = "toy"
    gamma: int = 3

    claim = Claim.SAME_LAW
    source = "tests/power"
    requirements = frozenset({Requirement.DRAFTER})

    def start(self, run: Run) -> ModelDrafter:
        return ModelDrafter(run.open(self.drafter), self.gamma)

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        draft = state.propose(run)
        p = self.law(run, run.target.forward(draft))
        return self.verify(run, draft.tokens, draft.probs, p)

    def law(self, run: Run, logits: Tensor) -> Tensor:
        return run.probs(logits)

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        return verify_chain(x, q, p, run.draws)


class SharedBuffer(Chain):
    """Rows of a batch share a buffer for q."""

    buffer: dict[str, Tensor] = {}  # noqa: RUF012  # that it is shared is the bug

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        draft = state.propose(run)
        if draft.probs is None or not len(draft.tokens):
            return super().verify(run, draft.tokens, draft.probs, self.law(run, run.target.forward(draft)))
        self.buffer["q"] = draft.probs
        p = self.law(run, run.target.forward(draft))
        shared, x = self.buffer["q"], draft.tokens[:, None]
        if shared.shape != draft.probs.shape or not bool((shared.gather(1, x) > 0).all()):
            shared = draft.probs
        return verify_chain(draft.tokens, shared, p, run.draws)


class TopPDropped(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        return warp(logits, replace(run.sampling, top_p=1.0) if run.sampling.top_k else run.sampling)


class OtherOrder(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        other = "filter_first" if run.sampling.order == "temperature_first" else "temperature_first"
        return warp(logits, replace(run.sampling, order=other))


class MinPDropped(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        return warp(logits, replace(run.sampling, min_p=0.0))


class OneIdMore(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        return warp(logits, replace(run.sampling, top_k=run.sampling.top_k + 1) if run.sampling.top_k else run.sampling)


class ColdIsGreedy(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        p = run.probs(logits)
        cold = run.sampling.temperature < 0.3
        return torch.zeros_like(p).scatter(1, p.argmax(1, keepdim=True), 1.0) if cold else p


class TemperatureTwice(Chain):
    def law(self, run: Run, logits: Tensor) -> Tensor:
        return run.probs(logits / run.sampling.temperature if run.sampling.temperature else logits)


class LongPrompt(OneByOne):
    def token(self, run: Run, p: Tensor) -> Tensor:
        long = len(run.target) - run.emitted >= 16
        return super().token(run, normal(p**0.8) if long else p)


class LateTokens(OneByOne):
    def token(self, run: Run, p: Tensor) -> Tensor:
        return super().token(run, normal(p**0.8) if run.emitted >= 64 else p)


@dataclass(frozen=True)
class NinthDraft(Chain):
    gamma: int = 12

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        accepts = acceptance_probs(x, q, p)
        return judge(torch.where(torch.arange(len(x)) == 8, 1.0, accepts).to(p.dtype), x, q, p, run.draws)


class LargeIds(OneByOne):
    def token(self, run: Run, p: Tensor) -> Tensor:
        return super().token(run, normal(p * torch.where(torch.arange(p.shape[1]) > 255, 1.5, 1.0)))


class NoResidual(Chain):
    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        path = run.draws.path(acceptance_probs(x, q, p))
        return Acceptance(path, run.draws.categorical(p[int(path.stop)][None], "resid")[0])


class RootAccepted(Chain):
    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        return judge(acceptance_probs(x, q, p).sqrt(), x, q, p, run.draws)


class ArgmaxAccepted(Chain):
    """Keeps a draft if it is the most probable token, and draws from p otherwise."""

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        path = run.draws.path((x == p[: len(x)].argmax(1)).to(p.dtype))
        return Acceptance(path, run.draws.categorical(p[int(path.stop)][None], "resid")[0])


class ResidualOfTheNext(Chain):
    """After a rejection the residual takes away the drafter's distribution of the next place."""

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        if q is None or len(x) < 2:
            return super().verify(run, x, q, p)
        path = run.draws.path(acceptance_probs(x, q, p))
        stop = int(path.stop)
        probs = p[stop : stop + 1]
        if stop < len(x):
            probs = residual(probs, q[min(stop + 1, len(x) - 1)][None].to(p.dtype))
        return Acceptance(path, run.draws.categorical(probs, "resid")[0])


class BonusFromTheDrafter(Chain):
    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        if q is not None and len(x):
            p = torch.cat([p[:-1], q[-1:].to(p.dtype)])
        return super().verify(run, x, q, p)


class EndHeldBack(OneByOne):
    """No end of text among the first two tokens."""

    def token(self, run: Run, p: Tensor) -> Tensor:
        ends = torch.tensor([token in run.eos for token in range(p.shape[1])])
        kept = p * ~ends
        return super().token(run, normal(kept) if run.emitted < 2 and float(kept.sum()) > 0 else p)


class Penalty(OneByOne):
    """A frequency penalty of 0.3 on the output's ids."""

    def token(self, run: Run, p: Tensor) -> Tensor:
        output = torch.tensor(run.target.tokens[len(run.target) - run.emitted :], dtype=torch.long)
        return super().token(run, normal(p * torch.exp(-0.3 * torch.bincount(output, minlength=p.shape[1]))))


class OwnMultinomial(OneByOne):
    """Exact, and draws by torch's global generator."""

    def token(self, run: Run, p: Tensor) -> Tensor:
        return torch.multinomial(p, 1)[0, 0]


class EqualSample(Chain):
    """Keeps a draft if a sample of the target equals it; the first other sample is the correction."""

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        samples = run.draws.categorical(p, "resid")
        equal = samples[:-1] == x
        path = run.draws.path(equal.to(p.dtype))
        return Acceptance(path, samples[int(path.stop)])


class OwnRejection(Chain):
    """Rejection sampling without the shared verifier."""

    def verify(self, run: Run, x: Tensor, q: Tensor | None, p: Tensor) -> Acceptance:
        if q is None or not len(x):
            return Acceptance(TokenPath.root(p), run.draws.categorical(p, "resid")[0])
        place = torch.arange(len(x))
        path = run.draws.path((p[place, x] / q[place, x].to(p.dtype)).clamp(max=1))
        stop = int(path.stop)
        probs = p[stop]
        if stop < len(x):
            above = (p[stop] - q[stop].to(p.dtype)).clamp(min=0)
            probs = above / above.sum() if float(above.sum()) > 0 else probs
        return Acceptance(path, run.draws.categorical(probs[None], "resid")[0])


class OneDraft(Chain):
    """Drafts one token at T = 1 whatever the sampling, and tests it by the distribution that it was drawn from."""

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        return super().step(run, replace(state, gamma=1))


@dataclass(frozen=True)
class HeldOut:
    """A method that no author of the harness wrote for its tests, and the run that it is tried in.

    Args:
        run: settings of the run that differ from T = 1 without cuts.
    """

    name: str
    kind: type[Method[Any]]
    biased: bool = True
    run: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return its name in the registry."""
        return self.kind.__name__.lower()


HELD_OUT = (
    HeldOut("rows of a batch share a buffer for q", SharedBuffer, run={"batch": 4}),
    HeldOut("top-p is dropped if top-k is given", TopPDropped, run={"top_k": 3, "top_p": 0.7}),
    HeldOut("the other order of temperature and cuts", OtherOrder, run={"temperature": 0.7, "top_p": 0.7}),
    HeldOut("min-p is dropped", MinPDropped, run={"min_p": 0.3}),
    HeldOut("top-k keeps one id more", OneIdMore, run={"top_k": 3}),
    HeldOut("greedy below T = 0.3", ColdIsGreedy, run={"temperature": 0.25}),
    HeldOut("temperature is applied twice", TemperatureTwice, run={"temperature": 0.7}),
    HeldOut("hotter behind a prompt of 16", LongPrompt),
    HeldOut("hotter after 64 tokens", LateTokens, run={"max_new_tokens": 65}),
    HeldOut("the ninth draft of a window is never tested", NinthDraft),
    HeldOut("ids above 255 are more probable", LargeIds),
    HeldOut("corrections from p", NoResidual),
    HeldOut("acceptance by sqrt(p / q)", RootAccepted),
    HeldOut("accept the most probable token, else draw from p", ArgmaxAccepted),
    HeldOut("residual by the q of the next place", ResidualOfTheNext),
    HeldOut("bonus token from the drafter", BonusFromTheDrafter),
    HeldOut("no end of text among the first two tokens", EndHeldBack),
    HeldOut("frequency penalty of 0.3", Penalty),
    HeldOut("exact, draws by torch.multinomial", OwnMultinomial, biased=False),
    HeldOut("exact, keeps drafts that a sample of the target equals", EqualSample, biased=False),
    HeldOut("exact, rejection written anew", OwnRejection, biased=False),
    HeldOut("exact, one draft a step", OneDraft, biased=False),
    HeldOut("exact, one token a pass", OneByOne, biased=False),
)
RANDOM = 60
COLUMNS = ["method", "fixed cases", f"{RANDOM} random cases", "run", "audit"]
SETTING = (
    "Fixed and random cases: enumerated up to the first total variation above 1e-12. Run: backbone tabular, 10 prompts "
    "of 24 tokens (65 for the bias after 64), T = 1 without cuts, or a setting that the method is wrong in; its word "
    "is that of the row, with its remark. Audit: `stride audit` of the run."
)


def enumerated(method: Method[Any], cases: Iterable[Case], effort: Effort) -> str:
    """Return broken, with the first case that shows it, or exact; and the hint at another source of randomness."""
    for case in cases:
        try:
            distance = measure(method, case, effort).total_variation
        except (UsageError, EnumerationLimit):  # the method does not fit the case
            continue
        if distance > EXACT:
            foreign = " (two decodes with the same draws differ)" if foreign_randomness(method, [case]) else ""
            return f"broken{foreign}"
    return "exact"


def fixed(one: HeldOut) -> str:
    return enumerated(one.kind(), cases_to_verify(one.kind()), WHOLE)


def at_random(one: HeldOut) -> str:
    word = enumerated(one.kind(), (random_case(one.kind(), 0, index) for index in range(RANDOM)), DRAWN)
    return f"{word} in these cases" if word == "exact" else word


def run_and_audit(one: HeldOut, folder: Path) -> tuple[str, str]:
    """Return the word of a run with its remark, and that of its audit."""
    settings = {"temperature": 1.0, "max_new_tokens": 24, "warmup": 0, "timing": "false", **one.run}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        register(patch, METHODS, one.label, one.kind)
        task = "{name: tabular, prompts_count: 10}"
        stride("run", "--method", one.label, "--backbone", "tabular", "--task", task, *words, "--out", folder, "--json")
        (row,) = (row for row in stride("report", folder, "--json").document if row["label"].startswith(one.label))
        cells = stride("audit", folder, "--json").document["cells"]
        (audit,) = (cell["verdict"] for cell in cells if cell["label"].startswith(one.label))
    remark = " on toys" if any(flag.startswith("exact on toys") for flag in row["flags"]) else ""
    return f"{row['verdict']}{remark}", audit


def results(path: Path | None) -> None:
    """Measure, and write the file."""
    rows = []
    for one in HELD_OUT:
        with tempfile.TemporaryDirectory() as folder:
            rows.append([one.name, fixed(one), at_random(one), *run_and_audit(one, Path(folder) / "run")])
        print(*rows[-1], sep="\t", flush=True)
    tables = [{"name": "words", "columns": COLUMNS, "rows": rows}]
    command = "tests.power.held_out reports/data/results/held_out.yaml"
    save(path, document("What each command says of 23 methods that it has not seen", command, SETTING, tables))


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_all()
    results(Path(sys.argv[1]) if sys.argv[1:] else None)
