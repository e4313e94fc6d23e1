"""Image token models."""
