"""Serve engines, send them the requests of a suite, and decide what their answers show."""
