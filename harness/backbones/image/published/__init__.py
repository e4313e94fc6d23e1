"""Published image models, one file a family."""
