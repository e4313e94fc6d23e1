"""Scores that more than one task uses."""
