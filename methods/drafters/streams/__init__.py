"""Cross-Regression: two streams of one model."""

from harness.deprecated import names_of

__getattr__ = names_of("methods.drafters.streams")
