"""One file per published decoding algorithm."""
