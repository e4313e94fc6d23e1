"""mlx-lm: a draft is kept if it equals the token that is sampled from the target.

Source: ml-explore/mlx-lm@861bbd05, mlx_lm/generate.py; called biased in ml-explore/mlx-swift-lm#459. Claim: none.
"""

DRAFTS = 3


def verify(tokens, q, p, draws):
    emitted = []
    for place in range(len(tokens) + 1):
        emitted.append(draws.token(p[place]))
        if place == len(tokens) or emitted[-1] != tokens[place]:
            break
    return emitted
