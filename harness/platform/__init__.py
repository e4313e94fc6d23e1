"""Workarounds for one platform or one library version."""
