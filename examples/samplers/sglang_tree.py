"""SGLang, target-only sampling of a tree of the drafter's most probable tokens, thresholds 1 and 1.

Source: sgl-project/sglang@120affb9, sgl-kernel/csrc/speculative/speculative_sampling.cuh. Claim: lossless.
"""

PARENTS = (-1, -1, 0, 0)
DISTINCT = True
SINGLE, TOGETHER = 1.0, 1.0


def propose(tokens, q, draws):
    return q[-1].argmax()


def verify(tokens, parents, q, p, draws):
    emitted, last = [], -1
    while True:
        coin, mass = draws.uniform(), 0.0
        rest = p[last + 1].copy()
        for node in [node for node, parent in enumerate(parents) if parent == last]:
            single = p[last + 1, tokens[node]]
            mass += single
            if coin <= mass / TOGETHER or single >= SINGLE:
                emitted.append(tokens[node])
                last = node
                break
            rest[tokens[node]] = 0
        else:
            return [*emitted, draws.token(rest)]
