"""Hierarchical speculative decoding, as released: the joint ratio of the whole draft is capped once, at its end.

Source: arXiv:2601.05724; ZhouYuxuanYX/Hierarchical-Speculative-Decoding@89745108, algorithm_clean.py. Claim: lossless.
"""

import numpy as np

DRAFTS = 3


def verify(tokens, q, p, draws):
    places = range(len(tokens))
    ratios = np.cumprod([1.0, *(p[place, token] / q[place, token] for place, token in enumerate(tokens))])
    lefts, stays = [], []
    for place in places:
        weight = min(1.0, ratios[place])
        lefts.append(np.maximum(weight * p[place] - q[place], 0))
        mass = max(lefts[-1].sum(), np.maximum(q[place] - weight * p[place], 0).sum())
        stays.append(1.0 if ratios[place + 1] >= 1 else lefts[-1].sum() / mass)
    if draws.coin(ratios[-1]):
        return [*tokens, draws.token(p[-1])]
    stop = next((place for place in reversed(places) if draws.coin(stays[place])), 0)
    if lefts[stop].sum() == 0:
        return tokens[: stop + 1]
    return [*tokens[:stop], draws.token(lefts[stop])]
