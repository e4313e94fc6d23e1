"""Adapters in the files that peft writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_adapter(folder: Path, model: Any, fingerprint: str) -> Path:
    """Save the adapter of a peft ``model`` into ``folder``, tied to the weights of this fingerprint."""
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"backbone": "tiny", "fingerprint": fingerprint}))
    return folder
