"""A quantised model beside itself in bf16: tokens a second, what a window costs, and how far its laws have moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from stridebench.harness.audit.output import target_logits
from stridebench.harness.bench.paired import Result, Settings, build, compare, decoded, in_turn, prompt_ids
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Window
from stridebench.harness.discover import plain
from stridebench.harness.plan import presets

WINDOW = 8
REPEATS = 10


def quantized(weights: str) -> Callable[[str, Settings], Result]:
    """Tokens a second of autoregressive decoding in one format beside bf16, at the same forced length."""

    def act(name: str, settings: Settings) -> Result:
        base = plain(settings.backbone)
        coarse, full = (presets.load(which, "bf16") for which in (f"{base}:weights={weights}", base))
        method, prompts = build("autoregressive", {}), prompt_ids(full, settings.pairs)

        def rate(backbone: Backbone) -> Callable[[list[int]], Sequence[int]]:
            return lambda ids: decoded(method, backbone, ids, settings.tokens, True).tokens

        result = compare(name, in_turn((rate(coarse), rate(full)), prompts), "tokens/s", None)
        moved, same = distance_of_laws(coarse, full, prompts, settings.tokens)
        costs = " and ".join(f"{window_cost(side, prompts[0]):.2f}" for side in (coarse, full))
        note = (
            f"{moved:.4f} nats a token from the law in bf16, same most likely token in {same:.1%}; "
            f"a window of {WINDOW} costs {costs} passes of one token"
        )
        return Result(**{**vars(result), "note": note})

    return act


def distance_of_laws(
    coarse: Backbone, full: Backbone, prompts: Sequence[list[int]], tokens: int
) -> tuple[float, float]:
    """Mean divergence of the coarse law from the full one along the full model's texts, and how often tops agree."""
    divergence, same, method = [], [], build("autoregressive", {})
    for ids in prompts:
        output = decoded(method, full, ids, tokens, True).tokens
        p, q = (target_logits(side, ids, output).float().log_softmax(-1) for side in (full, coarse))
        divergence.append((p.exp() * (p - q)).sum(-1))
        same.append(p.argmax(-1) == q.argmax(-1))
    return float(torch.cat(divergence).mean()), float(torch.cat(same).float().mean())


def window_cost(backbone: Backbone, ids: list[int]) -> float:
    """Time of a pass over ``WINDOW`` rows as a multiple of one row's, each the fastest of some."""

    def fastest(rows: int) -> float:
        times = []
        for _ in range(REPEATS):
            cache, length = backbone.cache(), len(ids)
            tokens, places = torch.tensor(ids + ids[-1:] * rows), torch.arange(length + rows)
            cache.extend(Window(tokens[:length], places[:length], 0, None, 0))
            begin = time.perf_counter()
            cache.extend(Window(tokens[length:], places[length:], length, None, rows))
            times.append(time.perf_counter() - begin)
        return min(times)

    return fastest(WINDOW) / fastest(1)
