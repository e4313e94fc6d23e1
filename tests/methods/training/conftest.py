"""Recipes are registered."""

from stridebench.harness.discover import load_recipes

load_recipes()
