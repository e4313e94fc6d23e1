"""A teacher's passages are the model's own decoding."""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.teacher import Teacher


def test_greedy_passages_are_the_models_own_decoding() -> None:
    """Several rows of different lengths in one pass against single ones."""
    teacher = Teacher.load("embedded-code", "fp32")
    texts = [p.head for p in islice(programs(np.random.default_rng(3), held_out=True), 3)]
    requests = [Prompt(str(n), text) for n, text in enumerate(texts)]
    draws = SeededDraws(0, "t", "p", 0)
    together = teacher.continued(requests, 12, Sampling(0.0), draws)
    assert together == [teacher.continued([request], 12, Sampling(0.0), draws)[0] for request in requests]
    rows = teacher.read(together[0], (-1,), logits=True)
    behind = slice(together[0].start - 1, len(together[0].tokens) - 1)
    assert rows.logits.argmax(-1)[behind].tolist() == list(together[0].tokens[together[0].start :])
    assert rows.hidden is not None
    z = rows.hidden[:, 0, 0] @ teacher.backbone.tied_embeddings().unembed.T
    torch.testing.assert_close(z, rows.logits, rtol=1e-4, atol=1e-4)
