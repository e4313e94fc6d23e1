"""Tables, figures, comparisons and gates: they read stores and never import torch."""

from stridebench.harness import deprecated

deprecated.install()
