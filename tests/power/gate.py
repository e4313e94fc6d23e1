"""`python -m tests.power.gate [FILE [FOLDER]]`: a damaged drafter through `stride gate`, free-running and replayed.

The target is embedded-digits-l and the drafter embedded-digits-s: two models that were trained apart. Noise on the
drafter's matrices lowers its acceptance by about 1, 3 and 10 %. Several seeds of the noise are tried; each damaged
drafter decodes the suite and is held against one baseline with A/A reruns, and is scored along the baseline's texts.
Writes a results file such as ``reports/data/results/gate_drafter.yaml``; prints each row as it is measured. Its runs
lie in FOLDER, where a second start takes up those that are finished.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.results import document, save
from tests.support.cli import stride

WEIGHTS = Path("harness/backbones/weights/digits-s")
PROMPTS, TOKENS, RERUNS, SEEDS = 24, 64, 3, 4
DROPS = (0.01, 0.03, 0.10)
SETTING = (
    f"Target embedded-digits-l, drafter embedded-digits-s with gamma = 4, T = 1, fp32, {PROMPTS} prompts of the task "
    f"digits, {TOKENS} tokens, {RERUNS} A/A reruns. Noise on every matrix of the drafter, of the size that costs "
    f"the stated share with its first seed; {SEEDS} seeds. The same damaged drafter is gated in both ways."
)
COLUMNS = ["damage", "gate", "fails", "passes", "inconclusive", "replayed change", "drop that would be seen"]


@dataclass(frozen=True)
class Bench:
    """A folder with the drafter's weights, which presets name, and the runs made with them."""

    folder: Path

    def drafter(self, size: float = 0.0, seed: int = 0) -> None:
        """Put a drafter in place whose matrices have noise of this share of their deviation."""
        body = self.folder / "drafter"
        shutil.rmtree(body, ignore_errors=True)
        shutil.copytree(WEIGHTS, body, ignore=shutil.ignore_patterns("card.json"))
        weights, generator = load_file(body / "model.safetensors"), torch.Generator().manual_seed(seed)
        for name, weight in weights.items():
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std()
            weights[name] = weight.float() + (size * noise if weight.ndim > 1 else 0.0)
        save_file(weights, body / "model.safetensors", metadata={"format": "pt"})
        (self.folder / "presets").mkdir(exist_ok=True)
        preset = {"adapter": "image", "source": {"folder": str(body.absolute())}, "guidance": 1.0}
        (self.folder / "presets" / "power-drafter.yaml").write_text(yaml.safe_dump(preset))

    def run(self, name: str, seed: int = 0) -> Path:
        """Decode the suite with the drafter that is in place."""
        path = self.folder / name
        words = ("--method", "{name: speculative, drafter: power-drafter, gamma: 4}", "--backbone", "embedded-digits-l")
        words += ("--dtype", "fp32", "--task", f"{{name: digits, limit: {PROMPTS}}}", "-t", "1")
        words += ("--max-new-tokens", str(TOKENS), "--seed", str(seed), "--set", "prove=false", "--set", "warmup=0")
        outcome = stride("run", *words, "--out", path, "--json", *(["--resume"] if path.exists() else []))
        if outcome.code:
            raise RuntimeError(outcome.err)
        return path

    def gate(self, *words: object) -> dict[str, Any]:
        """The document of the gate against the baseline."""
        outcome = stride("gate", *words, "--baseline", self.folder / "baseline.json", "--json")
        document: dict[str, Any] = outcome.document
        return document

    def change(self) -> float:
        """The replayed change of the acceptance of the drafter that is in place."""
        return float(self.gate("replay")["rows"][0]["change"])

    def size_of(self, drop: float) -> float:
        """The noise that costs this share of the acceptance, with its first seed."""
        size = 0.1
        for _ in range(3):
            self.drafter(size)
            lost = max(-self.change(), 1e-4)
            size *= float(np.clip(np.sqrt(drop / lost), 0.2, 3.0))  # the loss grows about as the square of the noise
        return size


def measured(bench: Bench, drop: float) -> list[list[str]]:
    """Two rows of the table: how often the gate and the replay see a damage."""
    size = bench.size_of(drop)
    free: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        bench.drafter(size, seed)
        free.append(bench.gate("check", bench.run(f"damaged-{drop}-{seed}")))
        replays.append(bench.gate("replay"))
    changes = [float(one["rows"][0]["change"]) for one in replays]
    seen = f"{100 * np.mean(changes):.2f} % [{100 * min(changes):.2f}, {100 * max(changes):.2f}]"
    name = f"-{drop:.0%} acceptance"
    return [[name, kind, *_shares(all_), seen, _visible(all_)] for kind, all_ in (("free", free), ("replay", replays))]


def _shares(documents: list[dict[str, Any]]) -> list[str]:
    words = [document["verdict"] for document in documents]
    return [f"{words.count(word)} of {len(words)}" for word in ("fail", "pass", "inconclusive")]


def _visible(documents: list[dict[str, Any]]) -> str:
    """The smallest drop that a figure of drafts would have shown, median over gates; identical records state none."""
    figures = ("acceptance", "expected", "tau_minus_1", "replay")
    rows = [[row["visible"] for row in one["rows"] if row["metric"] in figures] for one in documents]
    least = [min(value for value in values if value is not None) for values in rows if any(values)]
    return f"{100 * np.median(least):.2f} %" if least else "identical"


def noise(baseline: Mapping[str, Any]) -> list[list[str]]:
    """The standard error of each figure between equal runs."""
    (cell,) = baseline["cells"].values()
    return [[name, f"{100 * error:.2f} %"] for name, error in cell["noise"].items()]


def results(path: Path | None = None, runs: Path | None = None) -> None:
    """Measure; the file is written anew after each damage. ``runs``: the folder of the runs that is kept."""
    rows: list[list[str]] = []
    tables: list[dict[str, Any]] = [{"name": "power", "columns": COLUMNS, "rows": rows}]
    command = "tests.power.gate reports/data/results/gate_drafter.yaml"
    content = document("A damaged drafter through the gate", command, SETTING, tables)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(runs or Path(folder))
        os.environ["STRIDE_PRESETS"] = str(bench.folder / "presets")
        bench.drafter()
        again = [bench.run(f"again-{seed}", seed) for seed in range(1, RERUNS + 1)]
        words = [word for rerun in again for word in ("--again", rerun)]
        out = bench.folder / "baseline.json"
        made = stride("gate", "make", bench.run("base"), *words, "--replay", "--out", out, "--force")
        if made.code:
            raise RuntimeError(made.err)
        baseline = json.loads(out.read_text())
        tables.append({"name": "noise", "columns": ["figure", "error between A/A reruns"], "rows": noise(baseline)})
        same = [bench.gate("check", bench.run("same")), bench.gate("replay")]
        for kind, one in zip(("free", "replay"), same, strict=True):
            rows.append(["none", kind, *_shares([one]), "0", _visible([one])])
        for drop in (None, *DROPS):
            rows += measured(bench, drop) if drop is not None else []
            print(yaml.safe_dump(tables, width=120), flush=True)
            save(path, content)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with mock.patch("stridebench.reports.run_report.RunReport.write", lambda report, folder: []):  # no tables and plots
        results(*[Path(word) for word in sys.argv[1:3]])
