"""From folder to folder: the verbs of `collab` on checkpoints, each in a file of the name that its command has."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
