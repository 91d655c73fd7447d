"""Local, linear and LSH attention at one layer, trained alike (benchmarks/long_rows.py --task trained).

Queries and keys are trained through their projections, as `collab.refine` does, and the feature map with them, to give
what dense attention gives on rows of 2,048 tokens. The error is that on another article.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from common import seconds
from efficient import LAYER, local, lsh
from torch import Tensor, nn
from torch.nn import functional

BLOCK = 128
RATE, RATE_OF_FEATURES = 1e-3, 3e-2
"""Peak learning rates of projections, and of a feature map and its gates, which are few and begin from nothing."""


class Sample(NamedTuple):
    """The layer's input, (1, T, D), its values, (1, H, T, d), and what dense attention makes of them."""

    states: Tensor
    value: Tensor
    exact: Tensor


class Kind(nn.Module):
    """An attention layer with a kind of attention.

    Args:
        layer: BERT's, whose projections it begins with.
        kind: attention of queries, keys and values, (B, H, T, d), and the scale.
    """

    def __init__(self, layer: Any, kind: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads = layer.num_attention_heads
        self.query, self.key = (_copy(part) for part in (layer.query, layer.key))
        self.kind = kind

    def forward(self, states: Tensor, value: Tensor) -> Tensor:
        query, key = (part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key))
        return self.kind(query, key, value, query.shape[-1] ** -0.5)


class Linear(nn.Module):
    """Softmax in the window, features outside it, with one normalizer (LoLCATs, Zhang et al. 2024).

    The features are those of Hedgehog (Zhang et al. 2024), [softmax(Wx), softmax(−Wx)], with one map for all heads, so
    that keys shared by the heads have their features computed once; a gate for each head weighs them. It begins almost
    closed, as attention in the window alone.

    Args:
        heads: H.
        width: d.
    """

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.eye(width))
        self.gate = nn.Parameter(torch.full((heads, 1, 1, 1), -5.0))

    def features(self, states: Tensor, scaling: float) -> Tensor:
        """(B, H, T, d) → (B, H, T, 2d)."""
        mapped = states @ self.map * scaling**0.5
        return torch.cat([mapped.softmax(dim=-1), (-mapped).softmax(dim=-1)], dim=-1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        length = query.shape[2]
        rows, keys, values = (_padded(part) for part in (query, key, value))
        windows = [_around(part) for part in (keys, values)]  # (B, H, n, 3b, d)
        there = _around(_padded(torch.ones(1, 1, length, 1))).squeeze(-1).unsqueeze(-2)  # (1, 1, n, 1, 3b)
        scores = rows @ windows[0].mT * scaling + (there - 1) * 1e9  # (B, H, n, b, 3b)
        exponents = (scores - scores.amax(dim=-1, keepdim=True).detach()).exp()
        of_rows = self.features(rows, scaling)
        of_keys = self.features(keys, scaling) * _padded(torch.ones(1, 1, length, 1))
        sums = of_keys.mT @ torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)  # (B, H, n, 2d, d + 1)
        beside = functional.pad(sums, (0, 0, 0, 0, 1, 1)).unfold(2, 3, 1).sum(dim=-1)
        outside = of_rows @ (sums.sum(dim=2, keepdim=True) - beside) * self.gate.exp()  # (B, H, n, b, d + 1)
        total = exponents.sum(dim=-1, keepdim=True) + outside[..., -1:]
        return ((exponents @ windows[1] + outside[..., :-1]) / total).flatten(2, 3)[:, :, :length]


def _copy(part: nn.Linear) -> nn.Linear:
    copied = nn.Linear(part.in_features, part.out_features)
    copied.load_state_dict(part.state_dict())
    return copied


def _padded(states: Tensor) -> Tensor:
    """(B, H, T, w) → (B, H, n, b, w)."""
    return functional.pad(states, (0, 0, 0, -states.shape[2] % BLOCK)).unflatten(2, (-1, BLOCK))


def _around(blocks: Tensor) -> Tensor:
    """(B, H, n, b, w) → (B, H, n, 3b, w), each block with those beside it."""
    more = functional.pad(blocks, (0, 0, 0, 0, 1, 1))
    return torch.cat([more[:, :, :-2], more[:, :, 1:-1], more[:, :, 2:]], dim=3)


def _wider(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    return local(query, key, value, scaling, block=2 * BLOCK)


def sampled(model: Any, rows: list[Tensor]) -> list[Sample]:
    """What the layer is given, and gives, for rows of token ids, (1, T)."""
    layer, samples = model.encoder.layer[LAYER].attention.self, []
    for ids in rows:
        seen: list[Tensor] = []
        with layer.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0])), torch.no_grad():
            model(input_ids=ids)
            query, key, value = (
                part(seen[0]).unflatten(-1, (layer.num_attention_heads, -1)).transpose(1, 2)
                for part in (layer.query, layer.key, layer.value)
            )
            exact = functional.scaled_dot_product_attention(query, key, value)
        samples.append(Sample(seen[0], value.contiguous(), exact))
    return samples


def error(kind: nn.Module, sample: Sample) -> Tensor:
    """The squared error, relative to the variance of what dense attention gives."""
    exact = sample.exact
    spread = (exact - exact.mean(dim=2, keepdim=True)).square().sum()
    return (kind(sample.states, sample.value) - exact).square().sum() / spread


def run_trained(
    model: Any, train: list[Tensor], judged: list[Tensor], steps: int, names: Sequence[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Errors of every kind before and after training."""
    layer = model.encoder.layer[LAYER].attention.self
    fitted, others = sampled(model, train), sampled(model, judged)
    heads, width = layer.num_attention_heads, layer.attention_head_size
    kinds: dict[str, Callable[..., Tensor]] = {
        "local": local,
        "local, blocks of 256": _wider,
        "linear and window": Linear(heads, width),
        "LSH": lsh,
    }
    for name, attention in ((name, kinds[name]) for name in names or kinds):
        kind = Kind(layer, attention)
        with torch.no_grad():
            before = [float(error(kind, sample)) for sample in others]
        groups: list[dict[str, Any]] = [{"params": [*kind.query.parameters(), *kind.key.parameters()], "lr": RATE}]
        if isinstance(attention, nn.Module):
            groups.append({"params": [*attention.parameters()], "lr": RATE_OF_FEATURES})
        rates = [group["lr"] for group in groups]
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, pct_start=0.1)
        began = time.process_time()
        for step in range(steps):
            optimizer.zero_grad()
            error(kind, fitted[step % len(fitted)]).backward()
            optimizer.step()
            schedule.step()
        minutes = (time.process_time() - began) / 60
        with torch.no_grad():
            after = [float(error(kind, sample)) for sample in others]
            ms = [1000 * seconds(partial(kind, sample.states, sample.value)) for sample in others]
        yield (
            name,
            {
                "lengths": [sample.states.shape[1] for sample in others],
                "before": before,
                "after": after,
                "ms": ms,
                "steps": steps,
                "cpu_minutes": minutes,
                "threads": torch.get_num_threads(),
            },
        )


def table_of_trained(result: dict[str, Any], markdown: Any) -> str:
    """Errors before and after training, and milliseconds with the projections, by length."""
    rows = [
        [
            name,
            *(f"{cell:.3f}" for cell in (*entry["before"], *entry["after"])),
            *(f"{cell:.1f}" for cell in entry["ms"]),
        ]
        for name, entry in result.items()
    ]
    lengths = next(iter(result.values()))["lengths"]
    headings = [f"{what}, {length}" for what in ("error before", "error after", "ms") for length in lengths]
    return markdown(["one layer, trained", *headings], rows)
