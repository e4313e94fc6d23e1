"""Cross-Regression: drafts of the target with a gated adapter."""
