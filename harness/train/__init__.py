"""The training loop and the recipes of the shipped models."""
