"""Recipes of MuLo-SD's samplers between two scales."""
