"""Forward passes over the slot cache: one through transformers, and fused ones for architectures known here."""
