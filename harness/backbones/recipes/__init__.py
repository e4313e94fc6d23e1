"""Recipes of the shipped backbones: `stride train backbone NAME` makes their weights again."""
