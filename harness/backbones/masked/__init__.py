"""Masked diffusion models."""

from harness.deprecated import names_of

__getattr__ = names_of("harness.backbones.masked")
