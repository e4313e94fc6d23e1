"""One file per published decoding algorithm."""

from harness import deprecated

deprecated.install()
