"""Mesh token models."""
