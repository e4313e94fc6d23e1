"""Recipes of the adapters of Cross-Regression."""
