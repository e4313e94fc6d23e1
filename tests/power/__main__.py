"""`python -m tests.power [FILE]`: tokens that refute each planted bias, beside the two-sample MMD test.

Writes a results file such as ``reports/data/results/audit_power.yaml``; prints each row as it is measured.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from harness.discover import load_all
from harness.record.provenance import machine
from tests.power.biases import BIASED, CORRECT, Sampler, Setting
from tests.power.measure import decoded, tried
from tests.power.mmd import Outputs, mmd_p

TITLE = "Power of the audit against planted biases"
SETTING = (
    "Digits: embedded-digits-l (17 grey levels, 64 tokens), drafts of embedded-digits-s, 10 prompts x 3 seeds. "
    "Pictures: embedded-image-8x8 (1,024 codes, guidance 3, 72 tokens with ends of rows), 5 captions x 3. Programs: "
    "embedded-code (512 ids), 12 heads x 2, up to 64 tokens. T = 1, fp32. A sampler is refuted at e >= 1000. The MMD "
    "test (Hamming kernel, 1,000 permutations) compares the same tokens with as many of autoregressive decoding."
)
COLUMNS = ["sampler", "refuted after tokens", "of tokens", "log e at the end", "highest log e", "p of MMD"]


@cache
def reference(setting: Setting) -> tuple[Outputs, ...]:
    """Outputs of autoregressive decoding with seeds of their own, by prompt."""
    with torch.inference_mode():
        return decoded(Sampler("reference", setting, "autoregressive", biased=False))


def row(sampler: Sampler) -> list[str]:
    """One row of the table."""
    trial = tried(sampler)
    p = mmd_p(trial.outputs, reference(sampler.setting))
    after = trial.refuted_after
    cells = ["never" if after is None else str(after), str(len(trial.path)), f"{trial.path[-1]:.1f}"]
    print(sampler.name, *cells, f"{np.max(trial.path):.1f}", f"{p:.3f}", sep="\t", flush=True)
    return [sampler.name, *cells, f"{np.max(trial.path):.1f}", f"{p:.3f}"]


def results(path: Path | None) -> None:
    """Measure every sampler; the results file is written anew after each."""
    tables: list[dict[str, Any]] = []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    facts = machine()
    document = {
        "title": TITLE,
        "command": "python -m tests.power reports/data/results/audit_power.yaml",
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{facts.get('cores')} cores of {facts.get('cpu')}, torch {torch.__version__}, 1 thread",
        "setting": SETTING,
        "tables": tables,
    }
    for name, samplers in (("correct", CORRECT), ("biased", BIASED)):
        rows: list[list[str]] = []
        tables.append({"name": name, "columns": COLUMNS, "rows": rows})
        for sampler in samplers:
            rows.append(row(sampler))
            if path is not None:
                path.write_text(yaml.safe_dump(document, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_all()
    results(Path(sys.argv[1]) if sys.argv[1:] else None)
