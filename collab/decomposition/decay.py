"""The error as a function of the rank, for all ranks at once, without solving."""

from __future__ import annotations

from torch import Tensor

from .forms import form_named
from .head_tensor import HeadTensor
from .options import FormName


def decay(tensor: HeadTensor, form: FormName) -> Tensor:
    """Relative squared error at every rank from 0 to K, in closed form.

    It is exact for ``concat``. For ``cp`` it is the error of ``concat``, an upper bound, as the sweeps start there.
    For ``tucker`` it is the error of the side that is harder to capture, a lower bound for all factors.

    Returns:
        Shape (K + 1,), falling from 1 to 0.
    """
    return form_named(form).decay(tensor)
