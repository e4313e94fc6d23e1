"""Bugs to inject into the drawing of cells and into the canvas that they are read from."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

REDRAWN_TOKEN_NEVER_READ = Mutant(
    "stridebench.methods.drafters.scales.band:CellSampler.draw",
    "{*late, ",
    "{",
    "a redrawn token is never read",
)
DRAFT_ENTRY_STAYS = Mutant(
    "stridebench.harness.core.canvas:Canvas.read",
    "frozenset(positions)",
    "frozenset()",
    "the KV entry of a replaced draft stays",
)
