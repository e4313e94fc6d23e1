"""Where the files of a stand-in lie in its folder."""

from __future__ import annotations

FILES = {"gpt": "gpt.pt", "vq": "vq.pt", "model": "model", "text": "text", "tok": "tok.pt"}
"""Files and folders of a picture model's components."""
