"""The cache folder of the model hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HUB_FOLDERS = """
import importlib, os, sys
from pathlib import Path
from stridebench.harness.backbones.checkpoints import files

for name, folder in (("HF_HUB_CACHE", "a/hub"), ("HF_HOME", "b"), ("XDG_CACHE_HOME", "c")):
    os.environ[name] = str(Path.home() / folder)
    sys.modules.pop("huggingface_hub.constants", None)
    folder = files._cache()
    print(folder == Path(importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE))
    del os.environ[name]
"""


def test_the_folder_of_the_hubs_cache_is_the_clients(tmp_path: Path):
    """As huggingface_hub reads its variables, which is imported nowhere in a list."""
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(__file__).parents[4]), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", HUB_FOLDERS], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 3, done
