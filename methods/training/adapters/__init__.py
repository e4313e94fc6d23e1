"""Recipes of adapters."""
