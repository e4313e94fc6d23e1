"""What a run leaves behind: its tables (`columns`), metrics, store, statistics, provenance. Imports no torch."""
