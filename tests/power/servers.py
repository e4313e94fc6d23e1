"""`python -m tests.power.servers [FILE]`: tokens after which a server is refuted by its own scoring, and false alarms.

The servers draw from a table of 40 ids and send the 20 most probable ones. Writes a results file such as
``reports/data/results/audit_servers.yaml``; prints each row as it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stridebench.harness.audit.bets import Bets
from stridebench.harness.audit.of_rows import bets_on_rows
from stridebench.harness.audit.verdict import LARGEST, audit
from stridebench.harness.core.engine import TokenRow
from stridebench.harness.core.task import Sampling
from tests.results import document, save
from tests.support.sampling_server import TableServer, logprobs_behind

WIDTH, TOKENS, OUTPUTS, RUNS, AUDITS = 20, 32, 96, 10, 2000
COLUMNS = ["the server", "asked for", "refuted", "median of tokens until then", "highest log e", "best bet"]
VALIDITY = ["asked for", "audits of 64 tokens", "reach e = 20", "reach e = 1,000"]
SETTING = (
    f"{RUNS} audits a row of up to {TOKENS * OUTPUTS} tokens, 40 ids of which the 20 most probable ones are sent. "
    f"Refuted at e = 1,000, looked at after every {TOKENS} tokens. A bonus token is every fifth one."
)


@dataclass(frozen=True)
class Planted:
    """A server, the request that is sent to it, and the tokens of which a proxy changes one to any id (0: none)."""

    name: str
    server: TableServer
    sampling: Sampling = field(default_factory=lambda: Sampling(1.0))
    one_in: int = 0

    def outputs(self, seed: int, tokens: int) -> Iterator[Bets]:
        """The bets on its outputs, by the probabilities that it sends."""
        asked: dict[str, Any] = {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        asked |= {"min_p": self.sampling.min_p, "top_k": self.sampling.top_k, "max_tokens": tokens}
        for number in range(OUTPUTS):
            ids = [number % self.server.logits.shape[0]]
            events = self.server.reply({**asked, "prompt": ids, "seed": seed * OUTPUTS + number})[:-1]
            before, rows, proxy = ids[0], [], np.random.default_rng([seed, number])
            for event in events:
                (token,) = event["choices"][0]["token_ids"]
                if self.one_in and proxy.integers(self.one_in) == 0:
                    token = int(proxy.integers(len(self.server.logits)))
                logs = logprobs_behind(self.server.logits, before)
                top = {f"id {one}": float(logs[one]) for one in {*np.argsort(-logs)[:WIDTH].tolist(), token}}
                rows.append(TokenRow(f"id {token}", top))
                before = token
            yield bets_on_rows(rows, WIDTH, self.sampling)

    @property
    def request(self) -> str:
        """What is asked for, as in ``T = 1, min_p = 0.1``."""
        cuts = {"top_p": self.sampling.top_p, "min_p": self.sampling.min_p}
        named = [f"{name} = {value:g}" for name, value in cuts.items() if value not in (0, 1)]
        return ", ".join([f"T = {self.sampling.temperature:g}", *named])


ALONE: dict[str, Any] = {"every": 5, "bonus_only": True}
COLD, NUCLEUS, MIN_P = Sampling(0.7), Sampling(0.8, top_p=0.9), Sampling(1.0, min_p=0.1)
PLANTED = (
    Planted("is behind a proxy that changes one token in 20 to any id", TableServer(), one_in=20),
    Planted("draws at T = 1.1", TableServer(power=1 / 1.1)),
    Planted("draws at T = 0.9", TableServer(power=1 / 0.9)),
    Planted("draws at T = 1", TableServer(drops=("temperature",)), COLD),
    Planted("heeds the temperature at bonus tokens alone", TableServer(drops=("temperature",), **ALONE), COLD),
    Planted("forgets the temperature at bonus tokens", TableServer(drops=("temperature",), every=5), COLD),
    Planted("heeds min_p at bonus tokens alone", TableServer(drops=("min_p",), **ALONE), MIN_P),
    Planted("forgets min_p at bonus tokens", TableServer(drops=("min_p",), every=5), MIN_P),
    Planted("forgets top_p at bonus tokens", TableServer(drops=("top_p",), every=5), NUCLEUS),
)
CORRECT = tuple(Planted("is correct", TableServer(), sampling) for sampling in (Sampling(1.0), COLD, NUCLEUS, MIN_P))


def refutation(planted: Planted, seed: int) -> tuple[int | None, float, str]:
    """Return the tokens after which one audit refutes, the highest log e-value, and the best bet of then."""
    highest, best, outputs = -np.inf, "", list[Bets]()
    for bets in planted.outputs(seed, TOKENS):
        outputs.append(bets)
        result = audit(outputs)
        if result.log_e > highest:
            highest, best = result.log_e, result.best
        if result.verdict == "refuted":
            return len(outputs) * TOKENS, highest, best
    return None, highest, best


def power(planted: Planted) -> list[str]:
    """Return the row of a planted bias, or of a correct server."""
    tokens, highest, best = zip(*(refutation(planted, seed) for seed in range(RUNS)), strict=True)
    seen = [number for number in tokens if number is not None]
    median = f"{np.median(seen):.0f}" if seen else ""
    most = max(set(best), key=best.count) if seen else ""
    largest = "no limit" if max(highest) == LARGEST else f"{max(highest):.3g}"
    cells = [planted.name, planted.request, f"{len(seen)} of {RUNS}", median, largest, most]
    print(*cells, sep="\t", flush=True)
    return cells


def validity(planted: Planted) -> list[str]:
    """Return how many audits of a correct server reach an e-value."""
    logs = [audit([next(planted.outputs(seed, 64))]).log_e for seed in range(AUDITS)]
    cells = [planted.request, str(AUDITS), *(str(sum(log >= np.log(e) for log in logs)) for e in (20, 1000))]
    print(*cells, sep="\t", flush=True)
    return cells


def results(path: Path | None) -> None:
    """Measure, and write the file."""
    tables = [
        {"name": "planted", "columns": COLUMNS, "rows": [power(planted) for planted in (*PLANTED, *CORRECT)]},
        {"name": "validity", "columns": VALIDITY, "rows": [validity(planted) for planted in CORRECT]},
    ]
    command = "tests.power.servers reports/data/results/audit_servers.yaml"
    save(path, document("Servers audited by their own scoring", command, SETTING, tables))


if __name__ == "__main__":
    results(Path(sys.argv[1]) if sys.argv[1:] else None)
