"""Recipes of MuLo-SD's samplers."""
