"""Recipes of feature drafters."""
