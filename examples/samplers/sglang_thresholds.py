"""SGLang, the same sampling with `--speculative-accept-threshold-single 0.5`.

Source: sgl-project/sglang@120affb9, sgl-kernel/csrc/speculative/speculative_sampling.cuh. Claim: lossy.
"""

import sglang_tree
from sglang_tree import DISTINCT, PARENTS, propose  # noqa: F401


def verify(tokens, parents, q, p, draws):
    sglang_tree.SINGLE = 0.5
    try:
        return sglang_tree.verify(tokens, parents, q, p, draws)
    finally:
        sglang_tree.SINGLE = 1.0
