"""Backbone adapters: each implements `Cache` and knows nothing of drafts, verdicts or sampling."""

from importlib.util import find_spec

from harness import _torchvision

if find_spec("torchvision") is not None:
    _torchvision.ensure()  # transformers imports it wherever it is installed, before anything of it is used
