"""A series of runs of one suite, night by night: the figures that changed, and between which commits."""
