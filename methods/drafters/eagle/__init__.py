"""Feature drafters of EAGLE-1, -2 and -3."""
