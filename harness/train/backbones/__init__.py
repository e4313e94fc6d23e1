"""Recipes of the shipped backbones, one file each."""
