"""A backbone with noise on its logits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.text.noisy import NoisyBackbone
from stridebench.harness.core.backbone import Backbone
from tests.support.caches import feed
from tests.support.tiny_text import tiny


def fresh(model: Backbone, tokens: Sequence[int]) -> Tensor:
    return feed(model.cache(), tokens, 0)


TOKENS = [int(t) for t in torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(3))]


@pytest.mark.parametrize("forward", ["fused", "transformers"])
def test_noise_depends_on_seed_position_and_token_only(forward: str) -> None:
    model = tiny(forward=forward)
    noisy, again = NoisyBackbone(model, 0.5, 0), NoisyBackbone(model, 0.5, 0)
    plain, noisy_logits = fresh(model, TOKENS[:12]), fresh(noisy, TOKENS[:12])
    cache = again.cache()
    assert feed(cache, TOKENS[:4], 0, rows=0).shape == (0, 61)
    feed(cache, [1, 2, 3], 4)
    cache.keep(4)
    torch.testing.assert_close(feed(cache, TOKENS[4:12], 4), noisy_logits[4:], rtol=0, atol=1e-6)
    noise = noisy_logits - plain
    assert 0.45 < float(noise.std()) < 0.55
    assert len({round(float(row[0]), 9) for row in noise}) == 12
    assert not torch.allclose(fresh(NoisyBackbone(model, 0.5, 1), TOKENS[:12]), noisy_logits)
    assert torch.equal(fresh(NoisyBackbone(model, 0.0, 1), TOKENS[:12]), plain)
