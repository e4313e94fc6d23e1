"""EAGLE-1, recursive rejection of siblings that were sampled without replacement.

Source: SafeAILab/EAGLE@08dc06cc, eagle/model/utils.py, evaluate_posterior. Claim: lossless.
"""

import numpy as np

PARENTS = (-1, -1, 0, 0)
DISTINCT = True


def verify(tokens, parents, q, p, draws):
    emitted, last = [], -1
    while True:
        target = p[last + 1]
        for node in [node for node, parent in enumerate(parents) if parent == last]:
            if target[tokens[node]] > 0 and draws.coin(target[tokens[node]] / q[node, tokens[node]]):
                emitted.append(tokens[node])
                last = node
                break
            target = np.maximum(target - q[node], 0)
            target = target / target.sum()
        else:
            return [*emitted, draws.token(target)]
