"""Tables and figures of papers/sjdpp."""
