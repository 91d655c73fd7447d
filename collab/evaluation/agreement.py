"""How far a converted model is from the original in its outputs, on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import Batch


def agreement(original: PreTrainedModel, converted: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, Any] | None:
    """Runs both models on batches, one batch at a time, and compares their outputs.

    Args:
        original: a native model.
        converted: its conversion.
        batches: keyword arguments for both.

    Returns:
        None without batches; otherwise ``rows``, and for models with logits ``kl`` (mean Kullback-Leibler divergence
        from the original's distribution, nats) and ``top1`` (how often both prefer the same class), for the others
        ``token_cosine`` (mean cosine of hidden states) and ``embedding_cosine`` (of their means over a row's tokens).
    """
    modes = [(model, model.training) for model in (original, converted)]
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    rows = 0

    def add(name: str, values: Tensor) -> None:
        sums[name] = sums.get(name, 0.0) + float(values.double().sum())
        counts[name] = counts.get(name, 0) + values.numel()

    try:
        for model, _ in modes:
            model.eval()
        with torch.no_grad():
            for batch in batches:
                moved = {name: value.to(original.device) for name, value in batch.items()}
                rows += len(next(iter(moved.values())))
                _compare(original(**moved), converted(**moved), moved.get("attention_mask"), add)
    finally:
        for model, training in modes:
            model.train(training)
    if not rows:
        return None
    return {"rows": rows, **{name: sums[name] / counts[name] for name in sums}}


def _compare(expected: Any, actual: Any, mask: Tensor | None, add: Any) -> None:
    logits = [name for name in expected if name.endswith("logits") and isinstance(expected[name], Tensor)]
    for name in logits:
        first, second = _seen(expected[name].float(), mask), _seen(actual[name].float(), mask)
        if first.shape[-1] == 1:
            add("absolute_difference", (first - second).abs())
            continue
        target, given = first.log_softmax(-1), second.log_softmax(-1)
        add("kl", functional.kl_div(given, target, log_target=True, reduction="none").sum(-1))
        add("top1", (first.argmax(-1) == second.argmax(-1)).float())
    if logits or "last_hidden_state" not in expected:
        return
    first, second = expected["last_hidden_state"].float(), actual["last_hidden_state"].float()  # (B, T, D)
    add("token_cosine", functional.cosine_similarity(_seen(first, mask), _seen(second, mask), dim=-1))
    weight = first.new_ones(first.shape[:2]) if mask is None or mask.shape != first.shape[:2] else mask.to(first)
    one, other = ((states * weight.unsqueeze(-1)).sum(1) for states in (first, second))  # (B, D)
    add("embedding_cosine", functional.cosine_similarity(one, other, dim=-1))


def _seen(value: Tensor, mask: Tensor | None) -> Tensor:
    """The rows of (B, T, …) that are not padding; everything of an output of another shape."""
    if mask is not None and value.ndim == mask.ndim + 1 and value.shape[: mask.ndim] == mask.shape:
        return value[mask.bool()]
    return value
