"""Speech recognition models."""
