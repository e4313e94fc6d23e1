"""Random models whose output distribution can be enumerated."""
