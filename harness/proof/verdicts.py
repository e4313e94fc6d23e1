"""The verdict next to every speed number: exact, approximate, broken or unverified, with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.batch import Batch, Slot
from stridebench.harness.core.capabilities import UNORDERED, Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import EnumerationLimit, said_by
from stridebench.harness.machine.device import free_memory
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import BASELINE, Cell, Plan
from stridebench.harness.proof.cases import WIDER_CASES, Case, batch_cases_of, cases_of
from stridebench.harness.proof.distance import QUICK, reference_of
from stridebench.harness.proof.kept_laws import setting
from stridebench.harness.proof.prove import Proof, prove
from stridebench.harness.record.columns import Sample
from stridebench.harness.record.entries import StoredDifference, StoredVerdict
from stridebench.harness.record.metrics import diverge
from stridebench.harness.registry import METHODS

TIE = 1e-3
"""Logit margin in fp32 below which two tokens tie: windows of different shapes are rounded differently."""
ROUGH = {"bf16": 2.0, "fp16": 0.25}
"""Logit margin beyond which no rounding of these types parts two greedy outputs; correct methods stay at an eighth."""
OUTPUTS = 27
"""Largest number of outputs of a model in a run's proof, so that it takes seconds. `stride verify` takes more."""

IN_BATCHES = "unverified in batches"
"""The verdict of a method that is exact on every case, of which none is a batch that shows enough."""


class Verdicts:
    """Proofs of the methods of one group, each computed once.

    Args:
        backbone: of the group; greedy equality is checked in fp32 whatever its type.
        load_drafter: loads a drafter of ``backbone`` by name.
        release: releases the weights of ``backbone``; called if memory does not hold them together with those in fp32.
        keeps: whether they stay if memory holds both, for cells that are decoded later.
    """

    def __init__(
        self,
        plan: Plan,
        backbone: Backbone,
        load_drafter: Callable[[str], Backbone],
        fetch: bool,
        release: Callable[[], None] = lambda: None,
        keeps: bool = True,
    ) -> None:
        self.plan, self._keeps = plan, keeps
        self._release = release
        self.backbone = backbone
        self.fetch = fetch
        self._load_drafter = load_drafter
        self._drafters: dict[str, Backbone] = {}
        self._proofs: dict[str, StoredVerdict] = {}  # by `setting`: a plugin's equality does not count
        self._greedy: dict[tuple[str, str, int], StoredVerdict] = {}
        self._reference: dict[tuple[str, str], tuple[int, ...]] = {}
        self._fp32: Backbone | None = None

    def of(self, cell: Cell, samples: Sequence[Sample]) -> StoredVerdict:
        """Return the verdict of a cell; it has an ``error`` if a check could not be finished.

        Args:
            samples: of the cell. Without one that succeeded there is no word.
        """
        timed = _timed(samples)
        if not timed:
            return _NOTHING_TIMED
        batched = cell.batch > 1 and cell.method.claim is Claim.SAME_LAW
        verdict = _NO_VERDICT.merged(self._enumerated(cell.method, batched))
        if not cell.method.claim.lossless or Requirement.QUERIES in cell.method.requirements:
            return verdict
        if verdict.word != "broken" and cell.backbone != "tabular" and self.plan.suite.suite.prove:
            verdict = verdict.merged(self._greedy_verdict(cell, verdict))
        return verdict.merged(timed_verdict(cell, timed))

    def _greedy_verdict(self, cell: Cell, verdict: StoredVerdict) -> StoredVerdict:
        """Return the changes of a verdict by the greedy check; it runs even if the enumeration failed."""
        if not self.plan.suite.suite.greedy_check.prompts:
            note = "enumerated; greedy equality on this backbone was not asked for (greedy_check: prompts: 0)"
            return StoredVerdict(word="unverified", note=note) if verdict.word == "exact" else StoredVerdict()
        try:
            return self._greedy_equal(cell)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as in decoding: the cell says why, and the others go on
            text = f"greedy equality could not be checked: {said_by(error)}"
            return StoredVerdict(word="unverified", note=text, error=text)

    def _enumerated(self, method: Method[Any], batched: bool) -> StoredVerdict:
        if not self.plan.suite.suite.prove:
            return StoredVerdict(word="unverified", note="the suite says prove: false")
        key = f"{setting(method)}{' in batches' if batched else ''}"
        if key not in self._proofs:
            try:
                cases = (*cases_of(method, OUTPUTS), *(batch_cases_of(method) if batched else ()))
                proof = prove(method, cases, mutants=False, effort=QUICK)
                word = IN_BATCHES if batched and proof.verdict == "exact" and _lacks_batches(proof) else proof.verdict
                variation, note = proof.total_variation, _extent(proof, cases)
                if word == "declared":  # proved against the distributions that it states, not the target's
                    word, variation = "approximate", None
                    note = f"it samples the distributions that it declares ({proof.total_variation:.2g}); {note}"
                self._proofs[key] = StoredVerdict(word=word, note=note, total_variation=variation, case=proof.case)
            except EnumerationLimit as error:
                self._proofs[key] = StoredVerdict(word=_unproved(method), note=str(error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything; its cells say why
                text = said_by(error)
                self._proofs[key] = StoredVerdict(word=_unproved(method), note=text, error=text)
        return self._proofs[key]

    def _greedy_equal(self, cell: Cell) -> StoredVerdict:
        key = (setting(cell.method), cell.task.title, cell.batch)
        if key not in self._greedy:
            self._greedy[key] = self._compare(cell)
        return self._greedy[key]

    def _compare(self, cell: Cell) -> StoredVerdict:
        """Decode some prompts greedily in fp32, with the method in batches as in the cell, and with its reference."""
        check = self.plan.suite.suite.greedy_check
        prompts = self.plan.prompts[cell.task][: check.prompts]
        baseline = reference_of(cell.method) or METHODS.get(BASELINE)()
        divergences: list[StoredDifference] = []
        encoded_prompts = [self._model().open(prompt) for prompt in prompts]
        jobs = [
            partial(self._tokens, cell.method, prompt, encoded, check.tokens)
            for prompt, encoded in zip(prompts, encoded_prompts, strict=True)
        ]
        outputs = Batch[tuple[int, ...]](cell.batch).run(jobs)
        for prompt, encoded, tokens in zip(prompts, encoded_prompts, outputs, strict=True):
            if isinstance(tokens, Exception):
                raise tokens
            if (cell.task.title, prompt.id) not in self._reference:
                self._reference[cell.task.title, prompt.id] = self._tokens(baseline, prompt, encoded, check.tokens)
            reference = self._reference[cell.task.title, prompt.id]
            at = diverge(tokens, reference).at
            if at is not None:
                margin = self._margin(encoded, tokens, reference, at)
                divergences.append(StoredDifference(prompt=prompt.id, at=at, margin=margin))
        real = [item for item in divergences if not _tied(item.margin)]
        ties = f", {len(divergences) - len(real)} tied" if len(divergences) > len(real) else ""
        text = f"{len(prompts) - len(divergences)}/{len(prompts)} equal{ties} (fp32, {check.tokens} tokens)"
        verdict = StoredVerdict(greedy=text, divergences=divergences)
        note = "greedy output differs from the baseline's in fp32, and not at a tie"
        return verdict.merged(StoredVerdict(word="broken", note=note)) if real else verdict

    def _model(self) -> Backbone:
        if self._fp32 is None:
            model = self.backbone
            if model.dtype not in ("fp32", "fp64"):
                if not self._keeps or model.weights_bytes > free_memory(model.device):
                    self._release()
                model = presets.load(model.name, "fp32", model.device, self.fetch)
            self._fp32 = model
        return self._fp32

    def _open(self, name: str) -> Backbone:
        """Return a drafter in fp32, loaded once."""
        if self._model() is self.backbone:
            return self._load_drafter(name)
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

    def _margin(self, encoded: EncodedPrompt, tokens: tuple[int, ...], reference: tuple[int, ...], at: int) -> float:
        """Return the target's logit of the reference's token minus that of the other, where they diverge.

        It is infinite if one of them ends there, and for a masked model, which has no distribution of a next token.
        """
        model = self._model()
        if at >= min(len(tokens), len(reference)) or UNORDERED & model.capabilities.meets:
            return float("inf")
        draws = SeededDraws(0, "greedy", "check", 0, model.device)
        ids = (*encoded.tokens, *reference[:at])
        models = Models(model, lambda name: model, ids, encoded=EncodedPrompt(ids, encoded.cache))
        run = Run.of(models, Sampling(0.0), 1, draws)
        run.target.prefill()
        row = run.target.forward()[0]
        return float(row[reference[at]] - row[tokens[at]])


_NO_VERDICT = StoredVerdict(word=None, total_variation=None, case=None, greedy=None)
_NOTHING_TIMED = _NO_VERDICT.merged(StoredVerdict(note="no sample succeeded, so nothing is known of its output"))


def unproved(cell: Cell, samples: Sequence[Sample], reason: str) -> StoredVerdict:
    """Return the verdict of a cell whose proof cannot be run. Its timed outputs still count."""
    timed = _timed(samples)
    if not timed:
        return _NOTHING_TIMED
    verdict = _NO_VERDICT.merged(StoredVerdict(word=_unproved(cell.method), note=reason, error=reason))
    return verdict.merged(timed_verdict(cell, timed)) if cell.method.claim.lossless else verdict


def _timed(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.status == "ok" and not sample.warmup]


def timed_verdict(cell: Cell, timed: Sequence[Sample]) -> StoredVerdict:
    """Check the timed outputs themselves: at T = 0 each must equal the baseline's, except for ties.

    In bf16 and fp16 rounding may part two outputs, by a small margin; a large one refutes there too.
    """
    bound = ROUGH.get(cell.dtype, TIE)
    if cell.sampling.temperature > 0 or cell.dtype not in ("fp32", "fp64", *ROUGH):
        return StoredVerdict()
    diverged = [sample for sample in timed if sample.diverged_at is not None and not _tied(sample.margin, bound)]
    if not diverged:
        return StoredVerdict()
    first = diverged[0]
    reason = "by more than it rounds" if cell.dtype in ROUGH else "and not at a tie"
    margin = "one output ends there" if first.margin is None else f"a logit margin of {abs(first.margin):.3g}"
    note = (
        f"{len(diverged)} of {len(timed)} timed outputs differ from the baseline's in {cell.dtype}, {reason}: "
        f"prompt {first.prompt} at token {first.diverged_at} ({margin})"
    )
    return StoredVerdict(word="broken", note=note)


def _tied(margin: float | None, bound: float = TIE) -> bool:
    """Return whether a divergence is a tie; if there is no margin, because an output ended there, it is not a tie."""
    return margin is not None and abs(margin) <= bound


def _lacks_batches(proof: Proof) -> bool:
    """Whether a proof lacks a batch whose rows were enumerated jointly, or one of three tokens a row."""
    batches = [case for case in proof.cases if case.batch > 1]
    return not (any(case.joint for case in batches) and any(case.length >= 3 for case in batches))


def _extent(proof: Proof, cases: Sequence[Case]) -> str:
    """Describe the enumerated cases, and those that were shortened."""
    if proof.total_variation is None:
        return proof.case
    if proof.hint:
        return proof.hint
    text = f"enumerated on {len(proof.cases)} models, outputs of up to {max(c.length for c in proof.cases)} tokens"
    shorter = sum(case not in (*cases, *WIDER_CASES) for case in proof.cases)
    text += f"; {shorter} cut shorter, since a step has too many outcomes" if shorter else ""
    pinned = ", ".join(sorted(proof.method.pinned))
    return text + (f"; draws of {pinned} answered by {QUICK.starts} seeds" if pinned else "")


def _unproved(method: Method[Any]) -> str:
    """Return the word without a proof: a method that is approximate by design needs none."""
    return "unverified" if method.claim.lossless else "approximate"
