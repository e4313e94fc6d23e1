"""How every plot looks."""

from __future__ import annotations

from typing import Any

STYLE: Any = {
    "svg.hashsalt": "stridebench",
    "svg.fonttype": "path",
    "font.size": 10,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DASHES = (0, (4, 2))
OFFSET: Any = "offset points"
