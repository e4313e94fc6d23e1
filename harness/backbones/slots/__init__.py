"""Decoders over a preallocated key-value cache."""
