"""Verdict of a black box: its tokens against its decode without drafts, and against the backbone's distribution.

Four checks, from the strongest on. (0) The tokens are those of the plain decode with the same seeds. (1) At T = 0 they
differ if the plain decode differs from itself, at near ties of the reference, or by no more than the plain decode's
tokens lie below the reference's best ones, which is how far its arithmetic is from the reference's. (2) At T > 0 the
betting audit refutes them and not the plain decode's. (3) The numbers that the engine tells obey their identities.

Each check has its power: the share of differing outputs, or the bias a token, that 9 of 10 such checks would have seen,
and how many requests told numbers that could contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pandas as pd
import torch

from stridebench.harness.audit.laws import MARGINS
from stridebench.harness.audit.output import bets_on, target_logits
from stridebench.harness.audit.verdict import Audit, audit
from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.engine import EngineWeights
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.record.entries import CellMeta, StoredAudit, StoredDifference, StoredVerdict
from stridebench.harness.record.requests import Request, counted, identities
from stridebench.harness.record.store import Store

# The backbone that an engine's tokens are held against: its tokenizer and its distributions.


@dataclass(frozen=True)
class Reference:
    """A backbone, or its name alone if a suite says ``reference: false``.

    Args:
        name: of the backbone.
        backbone: or None if only texts are known.
    """

    name: str
    backbone: Backbone | None

    @classmethod
    def load(cls, name: str, dtype: str, device: str, fetch: bool, wanted: bool) -> Reference:
        """Load the weights, or nothing.

        Raises:
            WeightsError: they are not there.
        """
        return cls(name, presets.load(name, dtype, device, fetch) if wanted else None)

    @cached_property
    def weights(self) -> EngineWeights:
        """Return the places of its weights, for engines that load them."""
        declared = presets.resolve(self.name).params.get("source")
        if declared is None:
            return EngineWeights()
        source = sources.parse(self.name, declared)
        try:
            folder = None if source.kind == "random" else str(sources.locate(self.name, source))
        except WeightsError:
            folder = None
        return EngineWeights(folder, partial(_gguf, self.name, source))

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt; empty where only its text is known."""
        if self.backbone is not None:
            return tuple(map(int, self.backbone.open(prompt).tokens))
        return tuple(prompt.tokens or ())

    def text(self, tokens: Sequence[int]) -> str | None:
        """Return some ids as its tokenizer reads them, or None without a reference or if it makes no text."""
        if self.backbone is None or not tokens:
            return None
        text = self.backbone.decode(tokens)
        return text if isinstance(text, str) and text else None

    def misfit(self, tokens: Sequence[int], text: str | None) -> str | None:
        """Return why some ids are not of this backbone's tokenizer, or None if they may be."""
        if self.backbone is None or not tokens:
            return None
        vocabulary = self.backbone.capabilities.vocabulary
        if beyond := [token for token in tokens if not 0 <= token < vocabulary]:
            return f"the id {beyond[0]} is outside the vocabulary of {vocabulary} of {self.name}"
        own = self.backbone.decode(tokens)
        if text is None or not isinstance(own, str) or not own:
            return None
        told, own = text.strip().rstrip("\ufffd"), own.strip()
        if own.startswith(told) or told.startswith(own.rstrip("\ufffd")):
            return None
        return f"the ids decode to {own[:40]!r} with the tokenizer of {self.name}, and the engine says {told[:40]!r}"


def _gguf(name: str, source: sources.Source) -> str | None:
    path = sources.gguf(name, source)
    return None if path is None else str(path)


CLEAR = 20.0
"""An e-value of the plain decode below which nothing is held against it."""
NEAR_TIE = MARGINS["bf16"]
"""Logits of the reference nearer than this may change places by rounding in another type."""

DETECTED = 0.9
"""The power at which the size of what would have been seen is told."""
IDENTITY_COLUMNS = ("draft_steps", "drafted", "accepted", "histogram", "told_length", "told_rate")

Key = tuple[str, int]


class EngineJudge:
    """The verdicts of one backbone's cells.

    Args:
        cells: sealed ones alone.
        ids: of each prompt, by task title and prompt id.
    """

    def __init__(
        self,
        store: Store,
        reference: Reference,
        cells: Sequence[EngineCell],
        ids: Mapping[tuple[str, str], tuple[int, ...]],
    ) -> None:
        self._store, self._reference, self._cells, self._ids = store, reference, cells, ids
        self._rows = {cell.id: counted(store.cell(cell.id).requests) for cell in cells}
        drawn = [cell for cell in cells if cell.sampling.temperature > 0 and not cell.use.synthetic]
        self._audited = sum(1 for cell in drawn if cell.role != "floor")
        self._audits: dict[str, Audit | None] = {}

    def judge(self) -> None:
        """Write the verdict of every cell into its meta."""
        with torch.inference_mode():
            for cell in self._cells:
                self._store.update(cell.id, CellMeta(verdict=self._verdict(cell)))

    def _verdict(self, cell: EngineCell) -> StoredVerdict:
        requests = self._store.cell(cell.id).requests
        facts = StoredVerdict(
            broken_identities=broken_identities(requests), identities_checked=int(checkable(requests).sum())
        )
        if cell.use.synthetic:
            return facts.merged(StoredVerdict(verdict="synthetic acceptance"))
        plain = self._partner(cell, "plain", cell.use.plain or cell.use.label)
        if cell.role != "plain" and plain is not None:
            facts = facts.merged(self._compared(cell, plain))
        if cell.sampling.temperature > 0:
            facts = facts.merged(self._audited_facts(cell, plain if cell.role == "speculative" else None))
        elif cell.role == "speculative" and plain is not None:
            floor = self._partner(plain, "floor", plain.use.label)
            same = self._compared(floor, plain).same if floor is not None else None
            facts = facts.merged(StoredVerdict(floor=same))
            if largest(facts) > NEAR_TIE:
                facts = facts.merged(StoredVerdict(departure=self._departure(plain)))
        outputs = len(_outputs(self._rows[cell.id]))
        return facts.merged(StoredVerdict(verdict=word(cell, facts, outputs)))

    def _partner(self, cell: EngineCell, role: str, label: str) -> EngineCell | None:
        """A cell of the same setting; a floor is there for one load alone, which serves every load."""
        fitting = [other for other in self._cells if other.role == role and other.use.label == label]
        same = [other for other in fitting if other.setting == cell.setting]
        others = [other for other in fitting if other.setting[:3] == cell.setting[:3]]
        return next(iter(same or (others if role == "floor" else [])), None)

    def _compared(self, cell: EngineCell, plain: EngineCell) -> StoredVerdict:
        """Check 0 and 1: return how many outputs are the same, token by token, and their first differences."""
        here, there = (_outputs(self._rows[one.id]) for one in (cell, plain))
        keys = sorted(here.keys() & there.keys())
        other = [key for key in keys if here[key] != there[key]]
        same = 1 - len(other) / len(keys) if keys else None
        facts = StoredVerdict(pairs=len(keys), same=same, visible_share=visible_share(len(keys)) if keys else None)
        if cell.sampling.temperature > 0 or self._reference.backbone is None:
            return facts
        differences = [self._difference(cell, key, here[key], there[key]) for key in other]
        return facts.merged(StoredVerdict(differences=[one for one in differences if one is not None]))

    def _difference(
        self, cell: EngineCell, key: Key, one: Sequence[int], plain: Sequence[int]
    ) -> StoredDifference | None:
        at = next((i for i, (a, b) in enumerate(zip(one, plain, strict=False)) if a != b), None)
        ids = self._ids[cell.task.title, key[0]]
        if at is None or not ids or self._reference.backbone is None:
            return None  # one ends before the other: no token to compare
        logits = target_logits(self._reference.backbone, ids, list(plain[: at + 1]))[-1]
        return StoredDifference(prompt=key[0], at=at, margin=float(logits[plain[at]] - logits[one[at]]))

    def _departure(self, plain: EngineCell) -> float:
        """By how much the reference's logit of a token of the plain decode lies below its best one, at most."""
        below = [0.0]
        for (prompt, _), tokens in _outputs(self._rows[plain.id]).items():
            ids = self._ids[plain.task.title, prompt]
            if self._reference.backbone is not None and ids and tokens:
                logits = target_logits(self._reference.backbone, ids, tokens)
                chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
                below.append(float((logits.max(-1).values - chosen).max()))
        return max(below)

    def _audited_facts(self, cell: EngineCell, plain: EngineCell | None) -> StoredVerdict:
        """Check 2: return the betting audits of its tokens and of those of the plain decode."""
        own = self.audit(cell)
        if own is None:
            return StoredVerdict(audit=None)
        facts = StoredVerdict(audit=stored_audit(own))
        if plain is not None and (of_plain := self.audit(plain)) is not None:
            facts = facts.merged(StoredVerdict(plain_audit=stored_audit(of_plain)))
        return facts

    def audit(self, cell: EngineCell) -> Audit | None:
        """Return the audit of a cell's tokens, or None if the engine tells no ids or without a reference."""
        if cell.id not in self._audits:
            self._audits[cell.id] = self._audit(cell)
        return self._audits[cell.id]

    def _audit(self, cell: EngineCell) -> Audit | None:
        backbone = self._reference.backbone
        outputs = _outputs(self._rows[cell.id])
        if backbone is None or not outputs:
            return None
        bets = []
        for (prompt, _), tokens in outputs.items():
            ids = self._ids[cell.task.title, prompt]
            if ids and tokens:
                logits = target_logits(backbone, ids, tokens)
                bets.append(bets_on(logits, [*ids, *tokens], cell.sampling, MARGINS["bf16"]))
        return audit(bets, max(self._audited, 1)) if bets else None


def _outputs(rows: pd.DataFrame) -> dict[Key, list[int]]:
    """Token ids of each request that tells them."""
    told = rows[rows["tokens"].notna()]
    keys = zip(told["prompt"], told["repetition"], told["tokens"], strict=True)
    return {(str(prompt), int(repetition)): [int(token) for token in tokens] for prompt, repetition, tokens in keys}


def stored_audit(result: Audit) -> StoredAudit:
    """Return the figures of an audit that a verdict holds."""
    return StoredAudit(
        verdict=result.verdict,
        log_e=result.log_e,
        tokens=result.tokens,
        near_cut=result.near,
        visible_tv=result.visible_tv,
        best=result.best,
        threshold=result.threshold,
    )


def visible_share(pairs: int) -> float:
    """The share of differing outputs of which so many pairs show one or more in 9 of 10 checks."""
    return float(1 - (1 - DETECTED) ** (1 / pairs))


def checkable(rows: pd.DataFrame) -> pd.Series[bool]:
    """Whether a request tells two numbers or more that could contradict each other."""
    return rows[list(IDENTITY_COLUMNS)].notna().sum(axis=1) > 1


def broken_identities(rows: pd.DataFrame) -> list[str]:
    """Check 3: return the contradictions between the numbers of the requests, each line once."""
    lines: dict[str, None] = {}
    for row in rows.to_dict("records"):
        plain = {str(key): _value(value) for key, value in row.items()}
        lines |= dict.fromkeys(identities(Request.of(plain)))
    return list(lines)[:20]


def _value(value: Any) -> Any:
    """A cell of a frame as a value of a `Request`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def word(cell: EngineCell, facts: StoredVerdict, outputs: int = 0) -> str:
    """The verdict in words; "" for a plain greedy decode, which nothing is compared with.

    Args:
        outputs: of the cell; if fewer were compared with the plain decode's, an audit of all says more.
    """
    if cell.role == "floor":
        return ""
    own, of_plain = facts.audit, facts.plain_audit
    if cell.role == "speculative" and facts.pairs and facts.same == 1 and (own is None or facts.pairs >= outputs):
        return "same tokens"
    if cell.sampling.temperature == 0:
        return _greedy_word(facts) if cell.role == "speculative" else ""
    if own is None:
        return "unverified"
    if own.verdict != "refuted":
        return own.verdict
    if cell.role == "plain":
        return "other weights or arithmetic"
    if of_plain is None:
        return "refuted"
    if of_plain.verdict == "refuted":
        return "other arithmetic"
    return "broken" if of_plain.log_e < math.log(CLEAR) else "inconclusive"


def _greedy_word(facts: StoredVerdict) -> str:
    """Of greedy outputs that differ from the plain decode's."""
    if not facts.pairs or facts.differences is None:
        return "unverified"
    if facts.differences and largest(facts) <= NEAR_TIE:
        return "near ties"
    if facts.floor is not None and facts.floor < 1 and (facts.same or 0.0) >= facts.floor:
        return "as its plain decode again"
    return "other arithmetic" if NEAR_TIE < largest(facts) <= (facts.departure or 0.0) else "differs"


def largest(facts: StoredVerdict) -> float:
    """Return the largest distance of the reference's two logits at a first difference; 0 if there is none."""
    return max((abs(one.margin or 0.0) for one in facts.differences or ()), default=0.0)
