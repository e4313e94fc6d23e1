"""transformers, dynamic draft length: drafting ends behind a sampled token of a probability below 0.4.

Source: arXiv:2405.04304; huggingface/transformers@1097d4b3, ConfidenceCriteria. Claim: lossless.
"""

from vllm_token import verify  # noqa: F401

DRAFTS = 3


def propose(tokens, q, draws):
    if len(tokens) > 0 and q[-2, tokens[-1]] < 0.4:
        return None
    return draws.token(q[-1])
