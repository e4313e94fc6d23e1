"""Forward passes over the slot cache: through transformers, and fused for architectures known here."""
