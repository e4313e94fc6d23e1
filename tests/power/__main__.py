"""`python -m tests.power [FILE [SETTING ...]]`: tokens that refute each planted bias, beside the two-sample MMD test.

Writes a results file such as ``reports/data/results/audit_power.yaml``; prints each row as it is measured. SETTING:
digits, pictures or programs; rows of other settings, tables and notes of the file stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import yaml

from stridebench.harness.discover import load_all
from tests.power.biases import BIASED, CORRECT, DIGITS, NUCLEUS, PICTURES, PROGRAMS, Sampler, Setting
from tests.power.measure import decoded, tried
from tests.power.mmd import Outputs, mmd_p
from tests.results import document, save

TITLE = "Power of the audit against planted biases"
SETTING = (
    "Digits: embedded-digits-l (17 grey levels, 64 tokens), drafts of embedded-digits-s, 10 prompts x 3 seeds. "
    "Pictures: embedded-image-8x8 (1,024 codes, guidance 3, 72 tokens with ends of rows), 5 captions x 3. Programs: "
    "embedded-code (512 ids), 12 heads x 2, up to 64 tokens. T = 1, fp32. A sampler is refuted at e >= 1000. The MMD "
    "test (Hamming kernel, 1,000 permutations) compares the same tokens with as many of autoregressive decoding."
)
COLUMNS = ["sampler", "refuted after tokens", "of tokens", "log e at the end", "highest log e", "p of MMD"]
COLUMNS += ["visible TV", "tokens of an ideal bet", "commit"]
SETTINGS = {"digits": {DIGITS}, "pictures": {PICTURES, NUCLEUS}, "programs": {PROGRAMS}}


@cache
def reference(setting: Setting) -> tuple[Outputs, ...]:
    """Outputs of autoregressive decoding with seeds of their own, by prompt."""
    with torch.inference_mode():
        return decoded(Sampler("reference", setting, "autoregressive", biased=False))


def row(sampler: Sampler, commit: str) -> list[str]:
    """One row of the table."""
    trial = tried(sampler)
    p = mmd_p(trial.outputs, reference(sampler.setting))
    after = trial.refuted_after
    cells = [sampler.name, "never" if after is None else str(after), str(len(trial.path)), f"{trial.path[-1]:.1f}"]
    cells += [f"{np.max(trial.path):.1f}", f"{p:.3f}", "none" if trial.visible is None else f"{trial.visible:.3f}"]
    cells += ["" if trial.ideal is None else f"{trial.ideal:.0f}", commit]
    print(*cells, sep="\t", flush=True)
    return cells


def results(path: Path | None, settings: Sequence[str]) -> None:
    """Measure the samplers of these settings; the results file is written anew after each."""
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}
    earlier = {table["name"]: table for table in before.get("tables", [])}
    content = document(TITLE, "tests.power reports/data/results/audit_power.yaml", SETTING, [])
    commit = content["commit"]
    content["commit"] += ", and those of the rows" if before else ""
    content |= {"notes": before["notes"]} if "notes" in before else {}
    chosen = set().union(*(SETTINGS[name] for name in settings or SETTINGS))
    measured: dict[str, dict[str, list[str]]] = {}
    for name, samplers in (("correct", CORRECT), ("biased", BIASED)):
        old = {one[0]: one for one in earlier.pop(name, {"rows": []})["rows"]}
        measured[name] = {sampler.name: old[sampler.name] for sampler in samplers if sampler.name in old}
    for name, samplers in (("correct", CORRECT), ("biased", BIASED)):
        for sampler in (one for one in samplers if one.setting in chosen):
            measured[name][sampler.name] = row(sampler, commit)
            content["tables"] = [
                *({"name": key, "columns": COLUMNS, "rows": list(rows.values())} for key, rows in measured.items()),
                *earlier.values(),
            ]
            save(path, content)


if __name__ == "__main__":
    unknown = set(sys.argv[2:]) - SETTINGS.keys()
    if unknown:
        sys.exit(f"unknown setting {', '.join(sorted(unknown))}; it is one of {', '.join(SETTINGS)}")
    torch.set_num_threads(1)
    load_all()
    results(Path(sys.argv[1]) if sys.argv[1:] else None, sys.argv[2:])
