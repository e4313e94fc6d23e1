"""Backbone adapters: each implements `Cache` and knows nothing of drafts, verdicts or sampling."""
