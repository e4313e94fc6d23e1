"""Recipes of the scorers that tasks ship."""
