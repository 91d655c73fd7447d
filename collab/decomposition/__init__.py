"""The head tensor of an attention layer and its decompositions: linear algebra only, no transformers.

Notation is that of the package docstring (`collab`). Data flows `HeadTensor` → `decompose` → `Factors`. The
reference solvers are in `collab.decomposition.reference`, apart, because tensorly is slow to import.
"""

from .concat import decompose_concat, head_spectrum
from .cp import decompose_cp
from .decay import decay
from .factors import FORMS, Factors, Fit, Form
from .head_tensor import HeadTensor
from .metric import Metric, Whitening
from .options import METHODS, SolverOptions
from .solve import Decomposition, decompose, full_rank_factors
from .tucker import decompose_tucker

__all__ = [
    "FORMS",
    "METHODS",
    "Decomposition",
    "Factors",
    "Fit",
    "Form",
    "HeadTensor",
    "Metric",
    "SolverOptions",
    "Whitening",
    "decay",
    "decompose",
    "decompose_concat",
    "decompose_cp",
    "decompose_tucker",
    "full_rank_factors",
    "head_spectrum",
]
