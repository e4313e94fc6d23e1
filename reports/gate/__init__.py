"""Comparing a run with another, or with a baseline."""
