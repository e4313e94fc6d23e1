"""Masked diffusion models."""
