"""The head tensor of an attention layer and its decompositions: linear algebra only, no transformers.

Notation is that of the package docstring (`collab`). Data flows `HeadTensor` → `decompose` → `Factors`. What depends
on the form is asked of it (`Form`, from its name by `form_named`). The reference solvers are in
`collab.decomposition.reference`, apart, because tensorly is slow to import.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
