"""Acceptance in the layouts of other tools: read, checked for their known flaws, and written."""
