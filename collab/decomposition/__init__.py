"""The head tensor of an attention layer and its decompositions: linear algebra only, no transformers.

Notation is that of the package docstring (`collab`). Data flows `HeadTensor` → `decompose` → `Factors`. A form is
a class of factors (from its name by `form_named`), and what depends on it is asked of it. The reference solvers are in
`collab.decomposition.reference`, apart, because tensorly is slow to import.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
