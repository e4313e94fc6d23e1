"""Recipes of the drafters that methods use: `stride train KIND NAME` makes their weights."""
