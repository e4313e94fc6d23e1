"""Tables and figures of papers/mulo_sd."""
