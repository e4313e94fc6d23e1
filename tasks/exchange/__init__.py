"""Folders and files of the official evaluations: outputs of a run, and results that are read back."""
