"""One file per published decoding algorithm."""

from stridebench.harness import deprecated

deprecated.install()
