"""Backbone adapters: each implements `Cache` and knows nothing of drafts, acceptance or sampling."""
