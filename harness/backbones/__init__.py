"""Backbone adapters: each implements `Cache` and knows nothing of drafts, acceptance or sampling."""

from importlib.util import find_spec

from harness.platform import deferred, stand_ins, torchvision

if not stand_ins.installed():
    deferred.install()  # before anything of transformers is imported
if find_spec("torchvision") is not None:
    torchvision.ensure()  # transformers imports it wherever it is installed, before anything of it is used
