"""What results of every tool are read into: acceptance of requests, or of a whole run where a tool tells no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stridebench.harness.record.requests import Request


@dataclass(frozen=True)
class Result:
    """A file or folder of another tool.

    Args:
        tool: whose layout it is.
        source: its path.
        label: model, method or engine, as the tool says.
        requests: those that it tells, with fields null where it does not; ``status`` is "failed" where it failed.
        total: the whole run's numbers, where the tool tells them: draft_steps, drafted, accepted, output_tokens,
            seconds, told_length, told_rate, and what its flaws are seen by.
        golden: reference lengths by (mode, draft length), of a golden-acceptance file.
        flaws: what a reader must know, one line each.
    """

    tool: str
    source: str
    label: str = ""
    requests: tuple[Request, ...] = ()
    total: Mapping[str, float] = field(default_factory=dict)
    golden: Mapping[tuple[str, int], float] = field(default_factory=dict)
    flaws: tuple[str, ...] = ()

    def sum(self, name: str) -> float | None:
        """A total: of the tool, else of the requests; None where one of them does not tell it."""
        if name in self.total:
            return self.total[name]
        values = [getattr(row, name, None) for row in self.requests if row.status == "ok"]
        told = [value for value in values if value is not None]
        return float(sum(told)) if told and len(told) == len(values) else None

    @property
    def length(self) -> float | None:
        """1 + accepted / passes with a draft, pooled."""
        accepted, steps = self.sum("accepted"), self.sum("draft_steps")
        return 1 + accepted / steps if accepted is not None and steps else None

    @property
    def length_of_means(self) -> float | None:
        """Mean of the requests' own lengths."""
        own = [
            1 + row.accepted / row.draft_steps
            for row in self.requests
            if row.status == "ok" and row.draft_steps and row.accepted is not None
        ]
        return sum(own) / len(own) if own else None

    @property
    def rate(self) -> float | None:
        """Accepted / drafted."""
        accepted, drafted = self.sum("accepted"), self.sum("drafted")
        return accepted / drafted if accepted is not None and drafted else None
