"""Masked diffusion models."""

from stridebench.harness.deprecated import names_of

__getattr__ = names_of("stridebench.harness.backbones.masked")
