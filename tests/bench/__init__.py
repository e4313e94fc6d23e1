"""Benchmarks of ourselves: our speed against a peer, what the harness costs, and how it grows (`tox -e bench`)."""
