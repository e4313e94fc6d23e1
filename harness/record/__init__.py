"""What a run leaves behind: ledger, store, statistics, provenance. Imports no torch."""
