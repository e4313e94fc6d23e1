"""Timings of our own passes and of peers."""
