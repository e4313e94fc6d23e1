"""Draft trees."""

from harness.deprecated import names_of

__getattr__ = names_of("methods.trees")
