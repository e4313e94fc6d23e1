"""MuLo-SD: drafts at a lower resolution."""
