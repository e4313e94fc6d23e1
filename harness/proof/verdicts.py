"""The verdict beside every speed number: exact, approximate, broken or unverified, with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harness.core.backbone import Backbone, EncodedPrompt
from harness.core.batch import Batch, Slot
from harness.core.draws import SeededDraws
from harness.core.loop import decode
from harness.core.method import Claim, Method
from harness.core.models import Models
from harness.core.run import Run
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.errors import EnumerationLimit
from harness.plan import presets
from harness.plan.cells import BASELINE, Cell, Plan
from harness.proof.cases import Case, cases_of
from harness.proof.distance import QUICK
from harness.proof.divergence import diverge
from harness.proof.prove import Proof, prove
from harness.registry import METHODS

TIE = 1e-3
"""Logit margin in fp32 below which two tokens tie: another window shape rounds differently, and no more."""
OUTPUTS = 27
"""A run's own proof takes models of at most so many outputs, seconds for a suite; `stride verify` enumerates more."""


class Verdicts:
    """Proofs of the methods of one group, each made once.

    Args:
        backbone: of the group; greedy equality is looked at in fp32 whatever its type.
        drafter: opens a drafter of ``backbone`` by name. fetch: whether fp32 weights may be downloaded.
    """

    def __init__(self, plan: Plan, backbone: Backbone, drafter: Callable[[str], Backbone], fetch: bool) -> None:
        self.plan = plan
        self.backbone = backbone
        self.fetch = fetch
        self._drafter = drafter
        self._drafters: dict[str, Backbone] = {}
        self._laws: dict[Method[Any], dict[str, Any]] = {}
        self._greedy: dict[tuple[Method[Any], str, int], dict[str, Any]] = {}
        self._reference: dict[tuple[str, str], tuple[int, ...]] = {}
        self._fp32: Backbone | None = None

    def of(self, cell: Cell) -> dict[str, Any]:
        """{word, total_variation, case, greedy, note}."""
        law = self._law(cell.method)
        found = {"total_variation": None, "case": None, "greedy": None, **law}
        if law["word"] == "exact" and cell.backbone != "tabular":
            if not self.plan.suite.suite.greedy_check.prompts:
                note = "enumerated; greedy equality on this backbone was not asked for (greedy_check: prompts: 0)"
                return found | {"word": "unverified", "note": note}
            try:
                greedy = self._greedy_equal(cell)
            except Exception as error:  # as in decoding: the cell says why, and the others go on
                note = f"greedy equality could not be looked at: {type(error).__name__}: {error}"
                return found | {"word": "unverified", "note": note}
            found["greedy"] = greedy["text"]
            found["divergences"] = greedy["divergences"]
            if not greedy["equal"]:
                found |= {
                    "word": "broken",
                    "note": "greedy output differs from the baseline's in fp32, and not at a tie",
                }
        return found

    def _law(self, method: Method[Any]) -> dict[str, Any]:
        if not self.plan.suite.suite.prove:
            return {"word": "unverified", "note": "the suite says prove: false"}
        if method not in self._laws:
            try:
                cases = cases_of(method, OUTPUTS)
                proof = prove(method, cases, mutants=False, effort=QUICK)
                facts = {"total_variation": proof.total_variation, "case": proof.case}
                self._laws[method] = {"word": proof.verdict, "note": _extent(proof, cases), **facts}
            except EnumerationLimit as error:
                self._laws[method] = {"word": _unproved(method), "note": str(error)}
            except Exception as error:  # a plugin may raise anything; its cells still say why they are unverified
                self._laws[method] = {"word": _unproved(method), "note": f"{type(error).__name__}: {error}"}
        return self._laws[method]

    def _greedy_equal(self, cell: Cell) -> dict[str, Any]:
        key = (cell.method, cell.task.title, cell.batch)
        if key not in self._greedy:
            self._greedy[key] = self._compare(cell)
        return self._greedy[key]

    def _compare(self, cell: Cell) -> dict[str, Any]:
        """Decode some prompts greedily in fp32: with the method, as a gang where it runs in one, and the baseline."""
        ask = self.plan.suite.suite.greedy_check
        prompts = self.plan.prompts[cell.task][: ask.prompts]
        baseline = METHODS.get(BASELINE)()
        apart: list[dict[str, Any]] = []
        openings = [self._model().open(prompt) for prompt in prompts]
        jobs = [partial(self._tokens, cell.method, *each, ask.tokens) for each in zip(prompts, openings, strict=True)]
        outputs = Batch[tuple[int, ...]](cell.batch).run(jobs)
        for prompt, encoded, ours in zip(prompts, openings, outputs, strict=True):
            if isinstance(ours, Exception):
                raise ours
            if (cell.task.title, prompt.id) not in self._reference:
                self._reference[cell.task.title, prompt.id] = self._tokens(baseline, prompt, encoded, ask.tokens)
            theirs = self._reference[cell.task.title, prompt.id]
            at = diverge(ours, theirs).at
            if at is not None:
                apart.append({"prompt": prompt.id, "at": at, "margin": self._margin(encoded, ours, theirs, at)})
        real = [item for item in apart if not abs(item["margin"]) <= TIE]
        ties = f", {len(apart) - len(real)} tied" if len(apart) > len(real) else ""
        text = f"{len(prompts) - len(apart)}/{len(prompts)} equal{ties} (fp32, {ask.tokens} tokens)"
        return {"equal": not real, "text": text, "divergences": apart}

    def _model(self) -> Backbone:
        if self._fp32 is None:
            same = self.backbone.dtype in ("fp32", "fp64")
            self._fp32 = (
                self.backbone if same else presets.load(self.backbone.name, "fp32", self.backbone.device, self.fetch)
            )
        return self._fp32

    def _open(self, name: str) -> Backbone:
        """A drafter in fp32, loaded once."""
        if self._model() is self.backbone:
            return self._drafter(name)
        if name not in self._drafters:
            self._drafters[name] = presets.drafter(self._model(), name, self.fetch)
        return self._drafters[name]

    def _tokens(
        self, method: Method[Any], prompt: Prompt, encoded: EncodedPrompt, budget: int, slot: Slot | None = None
    ) -> tuple[int, ...]:
        model = self._model()
        draws = SeededDraws(0, "greedy", "check", 0, model.device)
        run = Run.of(Models(model, self._open, prompt, None, encoded, slot), Sampling(0.0), budget, draws)
        return decode(method, run).tokens

    def _margin(self, encoded: EncodedPrompt, ours: tuple[int, ...], theirs: tuple[int, ...], at: int) -> float:
        """The target's logit of their token less that of ours, where the two outputs part."""
        if at >= min(len(ours), len(theirs)):
            return float("inf")
        model = self._model()
        draws = SeededDraws(0, "greedy", "check", 0, model.device)
        ids = (*encoded.tokens, *theirs[:at])
        models = Models(model, lambda name: model, ids, encoded=EncodedPrompt(ids, encoded.cache))
        run = Run.of(models, Sampling(0.0), 1, draws)
        run.target.prefill()
        row = run.target.forward()[0]
        return float(row[theirs[at]] - row[ours[at]])


def _extent(proof: Proof, cases: Sequence[Case]) -> str:
    """What was enumerated, and how far that falls short of all outcomes."""
    text = f"enumerated on {len(proof.cases)} models, outputs of up to {max(c.length for c in proof.cases)} tokens"
    shorter = sum(case not in cases for case in proof.cases)
    text += f"; {shorter} cut shorter, since a step has too many outcomes" if shorter else ""
    pinned = ", ".join(sorted(proof.method.pinned))
    return text + (f"; draws of {pinned} answered by {QUICK.starts} seeds" if pinned else "")


def _unproved(method: Method[Any]) -> str:
    """Another law by design needs no proof: a setting too large for the toys leaves its total variation unknown."""
    return "approximate" if method.claim is Claim.APPROXIMATE else "unverified"
