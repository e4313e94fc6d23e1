"""Ledgers of the arithmetic that a CPU takes and of a plain one are equal, token by token and count by count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.core import clock, draws, run, sampling
from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.plan import presets
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers import rejection
from tests.support.tiny_llama import TINY

DEEPER = TINY.replace("num_hidden_layers: 2", "num_hidden_layers: 3")
WIDE = DEEPER.replace("vocab_size: 31", f"vocab_size: {sampling.SMALL + 5}").replace("range: 0.3", "range: 0.6")
SAMPLINGS = [Sampling(0.0), Sampling(1.0), Sampling(1.0, top_p=0.9), Sampling(0.7, top_p=0.6, order="filter_first")]
ENTRIES: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "prompt_lookup": {"length": 4, "max_ngram": 1},
    "lookahead": {"ngram": 3, "window": 2, "guesses": 2},
    "sjd": {"window": 5},
    "speculative": {"drafter": "self:layers=2", "gamma": 3},
    "specinfer": {"drafter": "self:layers=2", "widths": (2, 1)},
}


def plain_warp(logits: Tensor, how: Sampling) -> Tensor:
    """By sorts and whole rows, as equations have it."""
    if how.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(1, logits.max(-1, keepdim=True).indices, 1.0)
    first = how.order == "temperature_first"
    z = logits.float() / how.temperature if first else logits.float()
    if how.top_p < 1:
        p = z.softmax(-1)
        ordered = p.sort(descending=True).values
        last = (ordered.double().cumsum(-1) < how.top_p).sum(-1, keepdim=True).clamp_max(p.shape[1] - 1)
        z = z.masked_fill(p < ordered.gather(1, last), -torch.inf)
    return (z if first else z / how.temperature).softmax(-1)


def plain_inverse(probs: Tensor, u: Tensor) -> Tensor:
    running = probs.double().cumsum(-1)
    below = torch.minimum(u * running[:, -1], torch.nextafter(running[:, -1], torch.zeros(1, dtype=torch.float64)))
    return torch.searchsorted(running, below[:, None], right=True)[:, 0].clamp_max(probs.shape[-1] - 1)


def plain_chain(coins: Tensor, accept: Tensor) -> Path:
    stop = next((k for k, shown in enumerate(coins.tolist()) if not shown), len(coins))
    nodes = torch.tensor([k if k < stop else -1 for k in range(len(coins))], dtype=torch.long)
    return Path(nodes, torch.tensor(stop), accept.cumprod(0).sum())


def plain_judge(accept: Tensor, x: Tensor, q: Tensor | None, p: Tensor, randomness: Draws) -> Acceptance:
    if len(x) == 0:
        return Acceptance(Path.root(p), randomness.categorical(p, "resid")[0])
    path = randomness.path(accept)
    stop = int(path.stop)
    row = p[stop : stop + 1]
    if stop < len(x):
        drafted = torch.zeros_like(row).index_fill_(1, x[stop : stop + 1], torch.inf) if q is None else q[stop].to(p)
        left = (row - drafted).clamp_min(0)
        row = left / left.sum() if left.sum() > 0 else row
    return Acceptance(path, randomness.categorical(row, "resid")[0])


def ledger(backbone: Any, name: str, how: Sampling) -> list[tuple[Any, ...]]:
    method, rows = METHODS.get(name)(**ENTRIES[name]), []
    for prompt in ([1, 2, 3, 1, 2], [4, 4, 5, 4]):
        noise = SeededDraws(5, "fast", str(prompt), 0)
        done = decode(method, open_run(backbone, lambda name: presets.drafter(backbone, name), prompt, how, 12, noise))
        rows.append((done.tokens, *((s.rows, s.drafted, s.tested, s.accepted, s.emitted) for s in done.steps)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["small", "wide"])
def test_tokens_and_counts_are_those_of_plain_arithmetic(
    shape: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{shape}.yaml").write_text({"small": DEEPER, "wide": WIDE}[shape])
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    backbone = presets.load(shape, "fp32")
    cells = [(name, how) for name in ENTRIES for how in SAMPLINGS]
    with torch.inference_mode():
        fast = [ledger(backbone, *cell) for cell in cells]
        monkeypatch.setattr(run, "warp", plain_warp)
        monkeypatch.setattr(draws, "inverse_cdf", plain_inverse)
        monkeypatch.setattr(draws, "chain_path", plain_chain)
        monkeypatch.setattr(rejection, "judge", plain_judge)
        monkeypatch.setattr(clock, "_peak", lambda logits: logits.amax(-1).float().sum())
        plain = [ledger(backbone, *cell) for cell in cells]
    for cell, got, expected in zip(cells, fast, plain, strict=True):
        assert got == expected, cell
    assert len({str(tokens) for tokens in plain}) > len(cells) / 2  # the settings differ, so that the test can fail
