"""Bets against a sampler: is a text drawn from the distributions that its model gives, token by token?

Each token x is a bet. For an alternative distribution r, fixed before x is seen, the product of r(x) / p(x) over the
tokens of a correct sampler is a nonnegative martingale with mean 1. So is a fixed mixture over alternatives, the
e-value. It reaches 1 / a with probability at most a, however long one looks (Ville's inequality).

Sources: Shafer 2021, "Testing by betting"; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid
inference".

Symbols: N tokens, V vocabulary, A outcomes, J alternatives, D tilts, B kinds of bias.
"""
