"""The training loop and the recipes of the shipped models."""

from stridebench.harness.deprecated import names_of

__getattr__ = names_of("stridebench.harness.train")
