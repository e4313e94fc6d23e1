"""Runs the engines of a suite: their requests under load, what is wrong with an answer, and their verdicts."""
