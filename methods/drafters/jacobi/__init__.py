"""Jacobi windows."""

from stridebench.harness.deprecated import names_of

__getattr__ = names_of("stridebench.methods.drafters.jacobi")
