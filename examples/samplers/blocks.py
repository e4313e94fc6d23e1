"""Rules that test a chain of drafts as a whole, by the ratio of its joint probabilities."""

import numpy as np

from stridebench import sampler


def joint_ratios(tokens, q, p):
    """Return the ratio of the target to the drafter for each length of the draft, capped at every draft."""
    ratios = [1.0]
    for place, token in enumerate(tokens):
        ratios.append(min(1.0, ratios[-1] * p[place, token] / q[place, token]))
    return ratios


@sampler(drafts=3)
def vllm_block(tokens, q, p, draws):
    """vLLM, block verification.

    Source: arXiv:2403.10444; vllm-project/vllm@98c77cf0, vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py.
    Claim: lossless.
    """
    joint = joint_ratios(tokens, q, p)
    if draws.coin(joint[-1]):
        return [*tokens, draws.token(p[-1])]
    for stop in range(len(tokens) - 1, 0, -1):
        left = np.maximum(joint[stop] * p[stop] - q[stop], 0)
        whole = left.sum() + 1 - joint[stop]
        if whole > 0 and draws.coin(left.sum() / whole):
            return [*tokens[:stop], draws.token(left)]
    return [draws.token(np.maximum(p[0] - q[0], 0))]


@sampler(drafts=3)
def ascend_block(tokens, q, p, draws):
    """vLLM Ascend, the lengths of block verification with the residual of token verification.

    Source: vllm-project/vllm-ascend, issues 7807 and 7808. Claim: lossless.
    """
    joint = joint_ratios(tokens, q, p)
    if draws.coin(joint[-1]):
        return [*tokens, draws.token(p[-1])]
    for stop in range(len(tokens) - 1, -1, -1):
        left = np.maximum(joint[stop] * p[stop] - q[stop], 0).sum()
        residual = np.maximum(p[stop] - q[stop], 0)
        whole = left + 1 - joint[stop]
        if residual.sum() > 0 and (stop == 0 or (whole > 0 and draws.coin(left / whole))):
            return [*tokens[:stop], draws.token(residual)]
    return [draws.token(p[0])]


@sampler(drafts=3)
def hsd(tokens, q, p, draws):
    """Hierarchical speculative decoding, as released: the joint ratio of the whole draft is capped once, at its end.

    Source: arXiv:2601.05724; ZhouYuxuanYX/Hierarchical-Speculative-Decoding@89745108, algorithm_clean.py.
    Claim: lossless.
    """
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
