"""Backbone adapters: each implements `Cache` and knows nothing of drafts, acceptance or sampling."""

from importlib.util import find_spec

from stridebench.harness.platform import torchvision

if find_spec("torchvision") is not None:
    torchvision.ensure()  # transformers imports it wherever it is installed, before anything of it is used
