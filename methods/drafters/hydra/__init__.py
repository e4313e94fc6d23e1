"""Heads that read the tokens drafted before them."""
