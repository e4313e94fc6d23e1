"""Where the files of a stand-in lie in its folder, and how small its pictures are."""

from __future__ import annotations

FILES = {"gpt": "gpt.pt", "vq": "vq.pt", "model": "model", "text": "text", "tok": "tok.pt"}
"""Files and folders of a picture model's components."""
PIXELS = 32
"""How many times as small Tar's stand-ins are: 4x4, 8x8 and 16x16 cells, so that one drafts for another."""
