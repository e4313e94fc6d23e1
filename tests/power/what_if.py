"""`python -m tests.power.what_if [FILE [SETTING ...]]`: what `stride report --what-if` foretells, beside real decodes.

Texts of autoregressive decoding are weighed for every setting of speculative decoding; then each setting decodes the
same prompts with other seeds. SETTING: code, digits or smollm2, each at T = 1 and 0. Writes a results file such as
``reports/data/results/what_if.yaml`` after each table; tables of other settings stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from stridebench.harness.audit.output import forced_logits
from stridebench.harness.core.draft import ExpectedSteps
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode, prefill
from stridebench.harness.core.method import Method, label
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import load_all
from stridebench.harness.plan import presets
from stridebench.harness.record import stats
from stridebench.harness.registry import METHODS, TASKS
from tests.results import document, save

TITLE = "Tokens a step that stride report --what-if foretells, beside real decodes"
SETTING = (
    "Foretold: from texts of autoregressive decoding. Real: decodes of the same prompts with other seeds. Both in "
    "tokens a step; the difference has a 95 % interval over prompts, in which both sides vary. fp32."
)
COLUMNS = ["setting", "foretold", "real", "difference", "zero inside"]


@dataclass(frozen=True)
class Weighed:
    """A backbone, its drafter, and the prompts that both sides decode.

    Args:
        every: of the settings that are foretold, one in so many decodes.
    """

    backbone: str
    drafter: str
    task: str
    prompts: int
    repetitions: int
    tokens: int
    every: int = 1


SETTINGS = {
    "code": Weighed("embedded-code", "self:layers=3", "programs", 12, 1, 32),
    "digits": Weighed("embedded-digits-l", "embedded-digits-s", "digits", 10, 2, 24),
    "smollm2": Weighed("smollm2-135m", "self:layers=26", "humaneval", 6, 1, 16, 2),
}


class Decoder:
    """Opens runs on the prompts of a setting at one temperature."""

    def __init__(self, weighed: Weighed, temperature: float) -> None:
        self.weighed, self.sampling = weighed, Sampling(temperature)
        self._backbone = presets.load(weighed.backbone, "fp32")
        self._load_drafter = cache(partial(presets.drafter, self._backbone))
        self.prompts: Sequence[Prompt] = TASKS.get(weighed.task)().prompts()[: weighed.prompts]
        self.repetitions = weighed.repetitions if temperature else 1

    def open(self, prompt: Prompt, repetition: int, seed: str) -> Run:
        draws = SeededDraws(11, seed, prompt.id, repetition)
        models = Models(self._backbone, self._load_drafter, prompt)
        return Run.of(models, self.sampling, self.weighed.tokens, draws)

    def decoded(self, method: Method[Any]) -> Mapping[tuple[str, int], Decode]:
        return {
            (prompt.id, repetition): decode(method, self.open(prompt, repetition, label(method)), watched=False)
            for prompt in self.prompts
            for repetition in range(self.repetitions)
        }

    def foreseen(self, method: Method[Any]) -> Mapping[Method[Any], Mapping[tuple[str, int], ExpectedSteps]]:
        """The steps of each setting along texts of autoregressive decoding."""
        texts = self.decoded(METHODS.get("autoregressive")())
        settings: dict[Method[Any], dict[tuple[str, int], ExpectedSteps]] = {}
        for prompt in self.prompts:
            for repetition in range(self.repetitions):
                tokens = texts[prompt.id, repetition].tokens
                run = self.open(prompt, repetition, "what-if")
                prefill(method, run)
                p = run.probs(forced_logits(run.models.target(), tokens))
                for setting, steps in method.foresee(run, tokens, p).items():
                    settings.setdefault(setting, {})[prompt.id, repetition] = steps
        return settings


def row(decoder: Decoder, method: Method[Any], foreseen: Mapping[tuple[str, int], ExpectedSteps]) -> list[str]:
    """One row of the table."""
    real = decoder.decoded(method)
    index = pd.MultiIndex.from_tuples(list(real), names=["prompt", "repetition"])
    after = pd.DataFrame({"tokens": [len(one.tokens) for one in real.values()]}, index)
    after["steps"] = [float(len(one.steps)) for one in real.values()]
    before = pd.DataFrame({"tokens": [one.tokens for one in foreseen.values()]}, index)
    before["steps"] = [one.steps for one in foreseen.values()]
    taus = [frame["tokens"].sum() / frame["steps"].sum() for frame in (before, after)]
    cells = [label(method).removeprefix("speculative ").replace(f"drafter={decoder.weighed.drafter}", "").strip()]
    cells[0] = cells[0] or "gamma=5"
    cells += [f"{tau:.3f}" for tau in taus]
    if before["steps"].round(9).equals(after["steps"]) and before["tokens"].equals(after["tokens"]):
        cells += ["0, every output", "yes"]
    else:
        gap = stats.difference(before, after, "tokens", "steps")
        assert gap is not None
        inside = gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high
        cells += [f"{gap.estimate:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]", "yes" if inside else "no"]
    print(*cells, sep="\t", flush=True)
    return cells


def results(path: Path | None, names: Sequence[str]) -> None:
    """Measure these settings; the results file is written anew after each table."""
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}
    tables = {table["name"]: table for table in before.get("tables", [])}
    content = document(TITLE, "tests.power.what_if reports/data/results/what_if.yaml", SETTING, [])
    for name in names:
        weighed = SETTINGS[name]
        for temperature in (1.0, 0.0):
            print(f"{name}, T = {temperature:g}", flush=True)
            with torch.inference_mode():
                decoder = Decoder(weighed, temperature)
                foreseen = decoder.foreseen(METHODS.get("speculative")(drafter=weighed.drafter))
                rows = [row(decoder, *one) for one in list(foreseen.items())[:: weighed.every]]
            key = f"{name} T = {temperature:g}"
            tables[key] = {"name": key, "columns": list(COLUMNS), "rows": rows}
            save(path, content | {"tables": list(tables.values())})


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_all()
    asked = sys.argv[1:]
    results(Path(asked[0]) if asked else None, asked[1:] or list(SETTINGS))
