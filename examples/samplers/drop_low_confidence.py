"""A sampled draft is dropped, and drafting ends, if its own probability is below 0.3.

Source: `p_min` of llama.cpp (pull request 22506), which is exact with its greedy drafts, here with sampled ones.
Claim: none.
"""

from vllm_token import verify  # noqa: F401

DRAFTS = 3


def propose(tokens, q, draws):
    token = draws.token(q[-1])
    return token if q[-1, token] >= 0.3 else None
