"""A series of runs of one suite, night by night: where a figure changed, and between which commits."""
