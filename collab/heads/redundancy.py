"""Similarity of heads by their weights, and the shared dimensions that each uses."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.layers import AttentionLayer
from ..reparametrization.layer import factors_of


def product_likeness(layer: AttentionLayer) -> Tensor:
    """Cosines ⟨A_h, A_g⟩ / ‖A_h‖‖A_g‖ of every two heads' query-key products, (H, H), float64.

    Computed from the factors, without forming the D×D products.
    """
    query, cores, key = _factors(layer)  # (D_q, P), (H, P, P), (D_k, P)
    gram_query, gram_key = query.T @ query, key.T @ key  # (P, P)
    moved = gram_query @ cores @ gram_key  # (H, P, P)
    inner = torch.einsum("hpq,gpq->hg", moved, cores)
    norms = inner.diagonal().clamp(min=torch.finfo(inner.dtype).tiny).sqrt()
    return inner / (norms.unsqueeze(0) * norms.unsqueeze(1))


def sharing(layer: AttentionLayer) -> Tensor | None:
    """How much each head uses each shared dimension, (H, R): |M|, or the norm of the core's rows.

    The columns of the shared projections are scaled to norm 1 first, so that the entries can be compared.

    Returns:
        None for an original layer, where no dimension is shared.
    """
    if layer.converted is None or not layer.heads:
        return None
    query, cores, key = _factors(layer)
    return (cores * query.norm(dim=0).unsqueeze(1) * key.norm(dim=0)).norm(dim=2)  # (H, R)


def _factors(layer: AttentionLayer) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key projections (D, P) and each head's core between them, (H, P, P), in float64."""
    if layer.converted is not None:
        factors = factors_of(layer.converted).to(torch.empty((), dtype=torch.float64, device="cpu"))
        return factors.query, factors.cores(), factors.key
    heads = len(layer.heads)
    owner = torch.eye(heads, dtype=torch.float64).repeat_interleave(layer.head_dim, dim=1)  # (H, K)
    query, key = (layer.projection(role).weight.detach().T.double().cpu() for role in ("query", "key"))  # (D, K)
    return query, torch.diag_embed(owner), key
