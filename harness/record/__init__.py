"""Columns, metrics, store, statistics and provenance of a run. Imports no torch."""
