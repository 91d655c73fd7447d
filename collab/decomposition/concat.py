"""The concatenated form: the best one-hot mixing, in closed form.

With a one-hot M every shared dimension serves one head, so head h is approximated by a matrix of rank r_h and the ranks
add up to R. By Eckart-Young the best choice keeps the R largest singular values over all A_h. The singular values need
only d×d matrices: with QR factorizations W_Q^h = P L and W_K^h = Q N, A_h = P (L Nᵀ) Qᵀ. This is the per-head SVD of
CLOVER (arXiv 2411.17426) and A³ (arXiv 2505.12942), the dimensions divided among the heads by their singular values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .factors import Factors
from .head_tensor import HeadTensor


def head_spectra(tensor: HeadTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of every A_h.

    Returns:
        Left vectors (H, D_q, d), singular values (H, d) in falling order and right vectors (H, D_k, d), padded with
        zeros where an input is narrower than a head.
    """
    query = tensor.by_head(tensor.query.T.contiguous()).mT  # (H, D_q, d)
    key = tensor.by_head(tensor.key.T.contiguous()).mT  # (H, D_k, d)
    query_basis, query_triangle = torch.linalg.qr(query)
    key_basis, key_triangle = torch.linalg.qr(key)
    left, values, right = torch.linalg.svd(query_triangle @ key_triangle.mT, full_matrices=False)
    missing = tensor.head_dim - values.shape[1]
    return (
        pad(query_basis @ left, (0, missing)),
        pad(values, (0, missing)),
        pad(key_basis @ right.mT, (0, missing)),
    )


def decompose_concat(tensor: HeadTensor, rank: int) -> Factors:
    """The best concatenated factors with `rank` shared dimensions, in closed form."""
    left, values, right = head_spectra(tensor)
    kept = values.flatten().topk(rank).indices.sort().values  # (R,) ordered by head, then by singular value
    head = kept // tensor.head_dim  # (R,)
    component = kept % tensor.head_dim  # (R,)
    scale = values[head, component].sqrt()
    mixing = torch.zeros(tensor.num_heads, rank, dtype=tensor.query.dtype, device=tensor.query.device)
    mixing[head, torch.arange(rank, device=head.device)] = 1
    return Factors(
        form="concat",
        query=(left[head, :, component].T * scale).contiguous(),
        key=(right[head, :, component].T * scale).contiguous(),
        mixing=mixing,
    )
