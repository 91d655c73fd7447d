"""The error as a function of the rank, for all ranks at once, without solving."""

from __future__ import annotations

import torch
from torch import Tensor

from .concat import head_spectrum
from .head_tensor import HeadTensor
from .options import Form


def decay(tensor: HeadTensor, form: Form) -> Tensor:
    """Relative squared error at every rank from 0 to K, in closed form.

    It is exact for ``concat``. For ``cp`` it is the error of ``concat``, an upper bound, as the sweeps start there.
    For ``tucker`` it is the error of the side that is harder to capture, a lower bound for all factors.

    Returns:
        Shape (K + 1,), falling from 1 to 0.
    """
    if form != "tucker":
        values = torch.stack([head_spectrum(tensor, h)[1] for h in range(tensor.num_heads)])  # (H, d)
        return tail(values.flatten().square().sort(descending=True).values)
    return torch.maximum(*(tail(_side_energy(tensor, side)) for side in ("query", "key")))


def _side_energy(tensor: HeadTensor, side: str) -> Tensor:
    """Eigenvalues of Σ_h A_h A_hᵀ, or of Σ_h A_hᵀ A_h for the keys, falling, (K,)."""
    own, other = (tensor.query, tensor.key) if side == "query" else (tensor.key, tensor.query)
    heads = tensor.by_head(other.T)  # (H, d, D)
    blocks = heads @ heads.mT  # (H, d, d)
    root = torch.block_diag(*blocks) @ own.T  # (K, D)
    values = torch.linalg.eigvalsh(own @ root).clamp(min=0).flip(0)  # (D,)
    missing = tensor.full_rank - len(values)
    return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values[: tensor.full_rank]


def tail(energy: Tensor) -> Tensor:
    """What is left beyond each number of leading terms, relative to all, (K + 1,)."""
    total = energy.sum()
    if not total > 0:
        return torch.zeros(len(energy) + 1, dtype=energy.dtype, device=energy.device)
    left = energy.flip(0).cumsum(0).flip(0) / total
    return torch.cat([left, left.new_zeros(1)])
