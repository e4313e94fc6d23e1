"""The columns of a run's tables, steps.parquet and samples.parquet, as the fields of `Step` and `Sample`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from stridebench.harness.errors import ContractError

SCORER_FAILED = "scoring: "
"""Prefix of a sample's error, or of the reason of a set's score, if a task's scorer failed or broke its contract."""


@dataclass(frozen=True)
class Step:
    """One call of a method's ``step``; times in nanoseconds.

    Args:
        nfe: forward passes of the target's weights, counted at the caches; a drafter that is the target counts here.
        draft_nfe: passes of all other drafters.
        rows: entries fed by the target's passes, re-fed token included.
        drafted: nodes proposed.
        tested: nodes reached by the walk: those accepted, and the one rejected.
        accepted: drafted nodes kept.
        expected: mean of accepted given the draft, over the acceptance tests alone.
        emitted: tokens emitted:
            - accepted + 1 in general: the last is the bonus or the correction token;
            - accepted, if no pass has computed the last accepted draft;
            - the number of positions filled, on a canvas.
        forced: emitted tokens for which only one value was allowed.
        overshoot: emitted past the budget or the end of text, cut off the output.
        reused: drafted nodes carried over unchanged from the step before.
        forced_drafted: drafted tokens for which only one value was allowed; acceptance leaves them out.
        forced_tested: the same of tested.
        forced_accepted: the same of accepted.
        levels: depth of the deepest drafted node, from 1; 0 if nothing is drafted.
        levels_built: levels that the drafter built before the best nodes were chosen, which may leave a level without a
            node.
        resampled: positions filled by a draw from the target instead of the draft.
        wall_ns: the step on the host's clock, without ``stopped_ns``, which no other time holds either.
        device_ns: the step on the device's clock (the same on a CPU).
        draft_ns: inside drafter passes.
        target_ns: inside target passes.
        verify_ns: from the end of the target's pass to the acceptance on the host.
        host_ns: the rest.
        served: decodes that its last target pass served, this one included; 1 if it decodes alone.
        wait_ns: time that threads of the process could have run and had no core, added up over threads.
        switches: involuntary context switches of the process.
        gpu_mhz: clock of the GPU at the end of the step; 0: not known.
        foreign: processes of others that compute on the GPU at the end of the step.
        stopped_ns: time in which the process was stopped, as by a suspended machine; 0: it was not.
        ranks: number of earlier siblings of each accepted node of a tree, from 0; none in a chain.
        energies: log p(x) - log q(x) in nats for every draft x that was compared with the target, reached or not, by
            position; x was drawn from q. Only of methods that test by it.
        loss: total variation between the distribution that each emitted token was drawn from and the target's, added up
            over the step; None if the method does not declare its distributions (`Claim.DECLARED`).
    """

    nfe: int
    draft_nfe: int
    rows: int
    drafted: int
    tested: int
    accepted: int
    expected: float
    emitted: int
    forced: int
    overshoot: int
    reused: int
    wall_ns: int
    device_ns: int
    draft_ns: int
    target_ns: int
    verify_ns: int
    host_ns: int
    forced_drafted: int = 0
    forced_tested: int = 0
    forced_accepted: int = 0
    resampled: int = 0
    levels: int = 0
    served: int = 1
    wait_ns: int = 0
    switches: int = 0
    gpu_mhz: int = 0
    foreign: int = 0
    stopped_ns: int = 0
    ranks: tuple[int, ...] = ()
    energies: tuple[float, ...] = ()
    levels_built: int | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Sample:
    """One decoded prompt. The output that was timed is the one that is scored.

    Args:
        prompt: the prompt's id.
        repetition: 0, 1, ...; each has another seed.
        warmup: stored, never counted.
        status: "ok" or "failed".
        error: the failure in one line.
        prompt_tokens: ids of the prompt.
        tokens: output ids, end-of-text included, cut at the budget.
        text: the output as text, if there is a tokenizer.
        prefill_ns: time of reading the prompt, drafters included, and of loading them; not in any step.
        start_ns: the rest of the method's ``start``: it counts as the steps do. Of a batch, this decode's share.
        start_nfe: target passes made there.
        start_draft_nfe: drafter passes made there.
        open_ns: time of the prompt's encoder, before the prefill.
        output: the file of a picture or mesh, below the run folder; "" if the output is a text.
        logprobs: log p(token) of the target at T = 1 without top-k or top-p, one a token (natural log).
        agreement: longest common prefix with the baseline's output / the longer length; T = 0 only.
        diverged_at: first index that differs from the baseline's output, or None if they are equal or T > 0.
        margin: the target's logit of the baseline's token less that of this output's token, at ``diverged_at``.
        scores: the task's scores by name.
        category: the prompt's, for tables by category.
        cluster: the prompt's; intervals resample clusters.
        regions: the task's name for each cell of a picture, in raster order.
        stages: nanoseconds of the stages that a method names (`Run.timed`), over all steps.
        leading: the largest probabilities at T = 1, equally many a token; only of a baseline's picture.
        completion: tokens up to the first end-of-text id, which is included: fewer than ``tokens`` if a canvas is
            filled behind it.
        prompt_text: the prompt as text, for views; "" if it is not text.
        pieces: the text that each token adds to the output (`stridebench.harness.record.outputs`); none if there is no
            tokenizer.
        audit: the bets on the output at T > 0 (`stridebench.harness.audit.bets.Bets`), or the reason if there are none.
        drafter: some drafts compared with those made anew (`stridebench.harness.run.auditing`), or the reason
            why there are none; only of a task's first prompts.
        held_bytes: memory in use before the decode: of the CUDA allocator, else resident memory of the process. None
            if the machine does not tell.
        peak_bytes: the most of it during the decode, of a batch of the whole batch. Resident memory holds all that the
            process has loaded, for other cells too.
        cpu_uj: energy of the processor's packages and their memory during the decode, prefill included, microjoules, by
            RAPL; of a batch, this decode's share. Other work on the machine is in it.
        gpu_uj: the same of the GPU, by NVML.
        unread: which part of the prompt the model did not read, such as sound behind its 30 seconds; "" if it read all.
    """

    prompt: str
    repetition: int
    warmup: bool
    status: str
    error: str | None = None
    category: str = ""
    cluster: str = ""
    prompt_tokens: int = 0
    tokens: tuple[int, ...] = ()
    text: str = ""
    prefill_ns: int = 0
    logprobs: tuple[float, ...] = ()
    agreement: float | None = None
    diverged_at: int | None = None
    margin: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    open_ns: int = 0
    output: str = ""
    regions: tuple[str, ...] = ()
    stages: dict[str, int] = field(default_factory=dict)
    leading: tuple[float, ...] = ()
    prompt_text: str = ""
    pieces: tuple[str, ...] = ()
    start_ns: int = 0
    start_nfe: int = 0
    start_draft_nfe: int = 0
    audit: dict[str, Any] = field(default_factory=dict)
    completion: int | None = None
    drafter: dict[str, Any] = field(default_factory=dict)
    held_bytes: int | None = None
    peak_bytes: int | None = None
    cpu_uj: int | None = None
    gpu_uj: int | None = None
    unread: str = ""


@dataclass(frozen=True)
class Record:
    """A sample and its steps, which a store writes together."""

    sample: Sample
    steps: tuple[Step, ...]

    def plain(self) -> dict[str, object]:
        """As JSON values."""
        return {"sample": asdict(self.sample), "steps": [asdict(step) for step in self.steps]}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Record:
        """The inverse of ``plain``."""
        sample = dict(plain["sample"])
        sample["tokens"] = tuple(sample["tokens"])
        sample["logprobs"] = tuple(sample["logprobs"])
        sample["regions"] = tuple(sample.get("regions", ()))
        sample["leading"] = tuple(sample.get("leading", ()))
        sample["pieces"] = tuple(sample.get("pieces", ()))
        steps = (Step(**{**step, **{k: tuple(step.get(k, ())) for k in LISTS}}) for step in plain["steps"])
        return Record(Sample(**sample), tuple(steps))


def check(steps: Sequence[Step], output: int) -> None:
    """Check the identities that every record obeys.

    Raises:
        ContractError: sum(emitted) - overshoot differs from the output's length, or a step accepted more than it
            drafted or did not emit accepted + 1. A step whose last accepted draft was computed by no pass may emit as
            many as it accepted, and a step that drafts nothing may fill any number of positions.
    """
    emitted = sum(step.emitted for step in steps)
    overshoot = sum(step.overshoot for step in steps)
    if emitted - overshoot != output:
        raise ContractError(f"emitted {emitted} - overshoot {overshoot} is not the output's {output} tokens")
    for index, step in enumerate(steps):
        ends_unread = step.emitted == step.accepted == step.tested > 0
        emits = step.emitted == step.accepted + 1 or ends_unread or (step.emitted > 1 and not step.drafted)
        if not 0 <= step.accepted <= step.tested <= step.drafted or not emits:
            raise ContractError(
                f"step {index}: accepted {step.accepted}, tested {step.tested}, drafted {step.drafted}, "
                f"emitted {step.emitted}: expected accepted <= tested <= drafted and emitted = accepted + 1"
            )


STEP_FIELDS = tuple(f.name for f in fields(Step))
LISTS = ("ranks", "energies")
"""Fields that hold several numbers a step."""
STARTS = ("start_ns", "start_nfe", "start_draft_nfe")
"""Columns of samples that measure a method's ``start``."""
CONSUMPTION = ("held_bytes", "peak_bytes", "cpu_uj", "gpu_uj")
"""Columns of samples that are empty if the machine does not tell."""
FORCED = ("forced_drafted", "forced_tested", "forced_accepted")
