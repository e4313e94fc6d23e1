"""The typed records of a run: its manifest and the facts of its cells, checked when they are read from JSON files.

A checksum shows that a file was not altered. These checks show that it holds a run.
Entries that are not named here are kept as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

STRICT = ConfigDict(strict=True, extra="allow")
Count = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Entries(BaseModel):
    """Some entries of a JSON object. One that is absent has its default value."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @classmethod
    def read(cls, body: Any) -> Self:
        """Check a JSON value.

        Raises:
            ValueError: the first problem, as the predicate of a sentence about the file.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            if first["type"] == "missing":
                raise ValueError(f"lacks the entry {where:.120}") from None
            raise ValueError(f"has {where:.120} {first['input']!r:.80}: {first['msg']}") from None
        except RecursionError:
            raise ValueError("is nested too deep") from None

    def stored(self) -> dict[str, object]:
        """Return the entries that are present, as JSON holds them."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def merged(self, *others: Self) -> Self:
        """Return all entries that are present in one of these records; later ones replace earlier ones."""
        changes = {name: getattr(other, name) for other in others for name in other.model_fields_set}
        return self.model_copy(update=changes)


SAMPLING = ("temperature", "top_k", "top_p", "min_p", "order")
"""Columns of a summary that say how a cell draws, in the order of `sampling_words`."""


def sampling_words(temperature: float, top_k: int, top_p: float, min_p: float, order: str) -> str:
    """Return how logits are warped, such as ``T = 0.7, top-k 20, top-p 0.95, filters first``."""
    cuts = [f"top-k {top_k:g}"] if top_k else []
    cuts += [f"top-p {top_p:g}"] if top_p < 1 else []
    cuts += [f"min-p {min_p:g}"] if min_p else []
    cuts += ["filters first"] if cuts and order == "filter_first" else []
    return ", ".join([f"T = {temperature:g}", *cuts])


class StoredSampling(Entries):
    """How a cell draws."""

    temperature: Annotated[Finite, Field(ge=0)] = 0.0
    top_k: Count = 0
    top_p: Finite = 1.0
    order: str = "temperature_first"
    min_p: Finite = 0.0

    @property
    def words(self) -> str:
        """Return the setting as headings name it: the temperature, and what differs from sampling without cuts."""
        return sampling_words(self.temperature, self.top_k, self.top_p, self.min_p, self.order)


class StoredAudit(Entries):
    """The audit of an engine's tokens."""

    verdict: str = ""
    log_e: Finite
    tokens: Count = 0
    near_cut: Count = 0
    visible_tv: float | None = None
    best: str = ""
    threshold: float | None = None


class StoredDifference(Entries):
    """The first token in which two greedy outputs differ.

    Args:
        margin: the reference's logit of the plain decode's token less that of the other.
    """

    prompt: str
    at: Count
    margin: float | None


class StoredVerdict(Entries):
    """The verdict of a cell.

    Args:
        word: of a method's claim; None if no sample succeeded.
        total_variation: the largest that enumeration found, in ``case``.
        greedy: how many greedy outputs in fp32 equal the baseline's, in words.
        error: why a check could not be finished.
        verdict: of an engine's tokens; "" for a plain decode, which nothing is compared with.
        same: share of ``pairs`` of outputs that equal the plain decode's.
        visible_share: share of differing outputs that would have been seen.
        floor: share of outputs in which the plain decode equals itself.
        departure: by how much tokens of the plain decode lie below the reference's best logit.
    """

    word: str | None = "unverified"
    total_variation: float | None = None
    case: str | None = None
    greedy: str | None = None
    divergences: list[StoredDifference] = []
    note: str | None = None
    error: str | None = None
    verdict: str = ""
    pairs: Count = 0
    same: float | None = None
    visible_share: float | None = None
    floor: float | None = None
    departure: float | None = None
    differences: list[StoredDifference] | None = None
    audit: StoredAudit | None = None
    plain_audit: StoredAudit | None = None
    identities_checked: Count = 0
    broken_identities: list[str] = []


class StoredSetScore(Entries):
    """A score of all outputs together."""

    value: float | None
    n: Count
    failures: Count = 0
    low: float | None = None
    high: float | None = None
    reason: str = ""


class GridEntry(Entries):
    """The grid of a backbone of pictures."""

    rows: Annotated[Count, Field(ge=1)]
    columns: Annotated[Count, Field(ge=1)]
    stride: Annotated[Count, Field(ge=1)]


class StoredCounters(Entries):
    """How the counters of a server grew during a cell, or the problem that prevents saying it."""

    growth: dict[str, float] = {}
    per_position: list[float] = []
    problem: str = ""
    disagree: list[str] = []


class CellMeta(Entries):
    """The facts of a cell of a method or of an engine: those that are known before it runs, and those of its run.

    Args:
        status: planned, skipped or done.
        role: "method", "baseline" or "floor"; of an engine "plain", "speculative" or "floor".
        baseline: id of the cell that it is compared with.
        floor: id of the baseline with other seeds.
        window_costs: rows of a window and what a pass of them costs.
        adapter_on: format of the weights that an adapter is added to, if they are rounded.
        quantisation_kl: KL(full, rounded) a token, nats.
        quantisation_agreement: share of tokens whose most likely id is the same with full weights.
        engine: the registered name; "" for the cell of a method.
        plain: label of the engine that decodes without drafts.
        concurrency: requests at once; 0 in an open loop.
        rate: requests a second; 0 in a closed loop.
    """

    cell: str = ""
    status: str = ""
    reason: str | None = None
    method: str = ""
    params: dict[str, Any] = {}
    backbone: str = ""
    dtype: str = ""
    task: str = ""
    task_params: dict[str, Any] = {}
    sampling: StoredSampling = StoredSampling()
    max_new_tokens: Count | None = None
    stop_at_eos: bool = True
    seed: int = 0
    batch: Annotated[Count, Field(ge=1)] = 1
    role: str = "method"
    chat: bool = False
    label: str = ""
    claim: str | None = None
    source: str | None = None
    modality: str = "text"
    baseline: str | None = None
    floor: str | None = None
    expected: Count | None = None
    plugin: dict[str, str] | None = None
    timed: bool = True

    fingerprint: str | None = None
    backbone_notes: list[str] = []
    device: str = ""
    drafter_fingerprint: str | None = None
    forward: str = ""
    vocabulary: Count | None = None
    branches: Annotated[Count, Field(ge=1)] | None = None
    layers: Count | None = None
    grid: GridEntry | None = None
    threads: Count | None = None
    window_costs: list[list[float]] = []
    adapter_on: str | None = None
    quantisation_kl: float | None = None
    quantisation_agreement: float | None = None
    quantisation_outputs: Count | None = None
    quantisation_reason: str | None = None
    audit_log_e: float | None = None
    audit_tokens: Count | None = None
    audit_visible_tv: float | None = None
    audit_best: str | None = None
    audit_near_cut: Count | None = None
    audit_needed: Count | None = None
    audit_impossible: Count | None = None
    audit_threshold: float | None = None
    audit_reason: str | None = None
    drafter_places: Count | None = None
    drafter_tv: float | None = None
    drafter_tv_limit: float | None = None
    drafter_acceptance: float | None = None
    drafter_acceptance_anew: float | None = None
    drafter_reason: str | None = None
    verdict: StoredVerdict | None = None
    set_scores: dict[str, StoredSetScore] = {}
    lost_workers: list[str] = []
    attached: list[dict[str, str | list[str]]] = []

    engine: str = ""
    options: dict[str, Any] = {}
    serve: str = ""
    way: str = ""
    plain: str = ""
    load: str = ""
    concurrency: Count = 0
    rate: float = 0.0
    ignore_eos: bool = False
    told: dict[str, Any] = {}
    counters: StoredCounters | None = None

    @property
    def picture(self) -> GridEntry:
        """Return the grid of a backbone of pictures; check ``grid`` first."""
        assert self.grid is not None, "the backbone makes no pictures"
        return self.grid

    @property
    def growth(self) -> dict[str, float]:
        """Return how the counters of the server grew, by name; empty if that is not known."""
        return self.counters.growth if self.counters else {}

    @property
    def judged(self) -> StoredVerdict:
        """Return the verdict; without one, a verdict that is unverified."""
        return self.verdict or StoredVerdict()


class SealedMeta(CellMeta):
    """A finished or skipped cell, with its label and setting."""

    status: Literal["done", "skipped"]
    label: str
    backbone: str
    dtype: str
    task: str


class ReportEntry(Entries):
    """The report that a run ends with."""

    name: str
    roles: dict[str, dict[str, Any]] | None = None


class StoredSuite(Entries):
    """The suite of a run."""

    name: str = ""
    description: str = ""
    report: ReportEntry | str | None = None
    load: dict[str, Any] | None = None


class RunKey(Entries):
    """What two runs must share to be mixed."""

    seed: int = 0
    tasks: list[dict[str, Any]] = []
    methods: list[Any] = []
    prompts: dict[str, str] = {}


class Provenance(Entries):
    """The machine and versions of a run."""

    argv: list[str] = []
    machine: dict[str, Any] = {}
    fingerprint: str | None = None
    versions: dict[str, Any] = {}
    git: dict[str, Any] | None = None
    environment: dict[str, str] = {}


class Manifest(Entries):
    """The manifest of a run: its cells, and the key that two runs must share."""

    version: int = Field(0, alias="schema")
    created: str
    key: RunKey
    cells: dict[str, CellMeta]
    suite: StoredSuite = StoredSuite()
    provenance: Provenance = Provenance()
    vocabularies: dict[str, Count] = {}
    sizes: dict[str, Any] = {}
    engines: dict[str, CellMeta] = {}


class SealedBody(Entries):
    """The file of a sealed cell."""

    files: dict[str, str]
    meta: SealedMeta


class Mark(Entries):
    """Why a cell that a worker process began is not started again."""

    reason: str
    runs: Annotated[Count, Field(ge=1)] | None = None
