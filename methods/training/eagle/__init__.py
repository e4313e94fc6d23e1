"""Recipes of EAGLE's drafters, which read hidden rows of the backbone."""
