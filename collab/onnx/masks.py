"""Masks as small as they can be, for graphs that are traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function, eager_mask


@contextlib.contextmanager
def padding_in_one_row() -> Iterator[None]:
    """Has transformers make eager masks (B, 1, 1, S) where only padding is hidden, which all queries see alike.

    It writes them out for every query otherwise, (B, 1, T, S), and a graph carries that out.
    """
    ALL_MASK_ATTENTION_FUNCTIONS["eager"] = _mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["eager"]


def _mask(batch_size: int, q_length: int, kv_length: int, *, mask_function: Callable[..., Any], **given: Any) -> Tensor:
    rows = 1 if mask_function is bidirectional_mask_function else q_length
    return eager_mask(batch_size, rows, kv_length, mask_function=mask_function, **given)
