"""The masks of `torch.nn.MultiheadAttention` as the kernels take them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConfigurationError, ShapeError


def merged_mask(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> Tensor | None:
    """Both masks as one, boolean if both are.

    Args:
        attn_mask: (T, S) or (B·H, T, S); boolean, True where a key is hidden, or additive; or None.
        key_padding_mask: (B, S); boolean, True where a key is hidden, or additive; or None.
        shape: (B, H, T, S).
        dtype: that of additive masks.

    Returns:
        A mask that broadcasts to (B, H, T, S): boolean, True where a key is *seen*, or additive; or None.

    Raises:
        ShapeError: if a mask has another shape.
        ConfigurationError: if a mask is neither boolean nor of floating point.
    """
    batch, heads, length, seen = shape
    masks = []
    if attn_mask is not None:
        if attn_mask.shape == (length, seen):
            masks.append(attn_mask[None, None])
        elif attn_mask.shape == (batch * heads, length, seen):
            masks.append(attn_mask.unflatten(0, (batch, heads)))
        else:
            raise ShapeError(
                f"attn_mask must have shape {(length, seen)} or {(batch * heads, length, seen)}, not "
                f"{tuple(attn_mask.shape)}."
            )
    if key_padding_mask is not None:
        if key_padding_mask.shape != (batch, seen):
            raise ShapeError(
                f"key_padding_mask must have shape {(batch, seen)}, one number for each key, not "
                f"{tuple(key_padding_mask.shape)}."
            )
        masks.append(key_padding_mask[:, None, None])
    for mask in masks:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ConfigurationError(f"A mask must be boolean or of floating point, not {mask.dtype}.")
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~(masks[0] if len(masks) == 1 else masks[0] | masks[1])
    added = [_additive(mask, dtype) for mask in masks]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
