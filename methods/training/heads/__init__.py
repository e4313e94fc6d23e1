"""Recipes of prediction heads."""
