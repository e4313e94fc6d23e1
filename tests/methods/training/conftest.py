"""Recipes are registered."""

from harness.discover import load_recipes

load_recipes()
