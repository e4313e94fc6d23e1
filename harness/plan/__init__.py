"""From a suite file to the cells of a run."""

from stridebench.harness.deprecated import names_of

__getattr__ = names_of("stridebench.harness.plan")
