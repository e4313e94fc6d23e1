"""How every plot looks: colours that colour-blind readers tell apart, and fonts that a PDF embeds.

The colours are those of Okabe and Ito, "Color Universal Design" (2008). In grey some of them are alike, so a plot never
tells methods apart by colour alone: a point has its name beside it, and each curve of a panel has a marker of its own.
"""

from __future__ import annotations

from typing import Any

STYLE: Any = {
    "svg.hashsalt": "stridebench",
    "svg.fonttype": "path",
    "font.size": 10,
    "text.parse_math": False,
    "pdf.fonttype": 42,  # TrueType fonts are embedded, as publishers ask; type 3 is refused by some
    "ps.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DASHES = (0, (4, 2))
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#666666", "#8C564B", "#B8A000")
"""One a method: blue, orange, green, purple, sky, grey, brown, olive."""
MARKERS = dict(zip(COLOURS, "os^Dv<>p", strict=True))
"""The marker of a curve of each colour."""
BROKEN = "#D55E00"
"""Vermilion, which is kept for what is broken."""
OFFSET: Any = "offset points"
