"""What training parallel decoders costs."""
