"""Prediction heads."""

from harness.deprecated import names_of

__getattr__ = names_of("methods.drafters.heads")
