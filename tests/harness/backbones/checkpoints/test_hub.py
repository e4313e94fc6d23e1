"""The cache folder of the model hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_folder_of_the_hubs_cache_is_the_clients(monkeypatch, tmp_path: Path):
    """As huggingface_hub reads its variables, which is imported nowhere in a list."""
    for variables in ({"HF_HUB_CACHE": "a/hub"}, {"HF_HOME": "b"}, {"XDG_CACHE_HOME": "c"}):
        environment = {key: str(tmp_path / value) for key, value in variables.items()}
        code = (
            "from harness.backbones.checkpoints import hub; ours = hub._cache(); "
            "from huggingface_hub import constants; print(ours == __import__('pathlib').Path(constants.HF_HUB_CACHE))"
        )
        path = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(__file__).parents[4]), "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env={**path, **environment}, capture_output=True, text=True)
        assert done.stdout.strip() == "True", (variables, done.stderr)
