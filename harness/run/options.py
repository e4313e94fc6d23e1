"""How to run a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.run.progress import Progress


@dataclass(frozen=True)
class Options:
    """How to run, as against what.

    Args:
        allow_code: let tasks execute model output (in a sandboxed child process).
        device: of the backbones.
        fetch: download pinned weights that are missing.
        progress: whom to tell.
    """

    allow_code: bool = False
    device: str = "cpu"
    fetch: bool = True
    progress: Progress = field(default_factory=Progress)
