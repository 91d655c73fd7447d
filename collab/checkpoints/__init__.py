"""The verbs of `collab` from folder to folder, each in a file named after its command."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
