"""Adapters in the files that peft writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def write_adapter(folder: Path, model: Any, fingerprint: str) -> Path:
    """Save the adapter of a peft ``model`` into ``folder``, tied to the weights of this fingerprint."""
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"backbone": "tiny", "fingerprint": fingerprint}))
    return folder


def adapted(model: Any, **settings: Any) -> Any:
    """peft's wrapper of a model, with low-rank products that are not zero."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**{"r": 4, "lora_alpha": 8, **settings}))
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    return wrapped
