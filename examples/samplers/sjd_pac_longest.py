"""SJD-PAC, several rows with coins of their own, of which the longest accepted one is kept.

Source: arXiv:2603.18599; KangJialiang/SJD-PAC@4fbc099f, scheduler/sjd_pac_iteration_lumina_mgpt.py. Claim: lossless.
"""

import numpy as np

PARENTS = (-1, 0, -1, 2)


def verify(tokens, parents, q, p, draws):
    rows = []
    for nodes in ((0, 1), (2, 3)):
        row, last = [], -1
        for node in nodes:
            if not draws.coin(p[last + 1, tokens[node]] / q[node, tokens[node]]):
                rows.append((row, np.maximum(p[last + 1] - q[node], 0)))
                break
            row, last = [*row, tokens[node]], node
        else:
            rows.append((row, p[last + 1]))
    row, left = max(rows, key=lambda item: len(item[0]))
    return [*row, draws.token(left)]
