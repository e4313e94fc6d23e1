"""The training loop and the recipes of the shipped models."""

from harness.deprecated import names_of

__getattr__ = names_of("harness.train")
