"""Kinds of efficient attention, for comparison at one layer (benchmarks/long_rows.py --task layer)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from collab.modeling.collab_config import LongRows
from collab.modeling.collab_kernel import Scoring
from collab.modeling.collab_long import attention_in_blocks

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
    return (first @ (_inverse(middle) @ last)).transpose(1, 2).contiguous(), None


def _inverse(matrix: Tensor, steps: int = 6) -> Tensor:
    """The iteration for the pseudoinverse in the paper's code; an exact one enlarges rounding where rows are alike."""
    identity = torch.eye(matrix.shape[-1])
    inverse = matrix.mT / (matrix.abs().sum(-1).amax(-1) * matrix.abs().sum(-2).amax(-1))[..., None, None]
    for _ in range(steps):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def _segments(states: Tensor, count: int) -> Tensor:
    """Means of so many segments of about equal length, (B, H, T, d) → (B, H, count, d)."""
    edges = torch.linspace(0, states.shape[2], count + 1).long()
    sums = functional.pad(states.cumsum(dim=2), (0, 0, 1, 0))[:, :, edges]
    return (sums[:, :, 1:] - sums[:, :, :-1]) / (edges[1:] - edges[:-1]).unsqueeze(1)


def local(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, summaries: str | None = None, block: int = 128
) -> Tensor:
    """Attention in blocks, (B, H, T, d)."""
    heads, width = query.shape[1], query.shape[-1]
    shared = query.transpose(1, 2).flatten(2)
    scoring = Scoring(None, None, None, scaling, 0.0, False)
    long = LongRows(block=block, global_tokens=1, dense_below=2, summaries=summaries)

    def mix(shared: Tensor, room: Tensor | None) -> Tensor:
        return shared.squeeze(1).unflatten(-1, (heads, width)).transpose(1, 2)

    return attention_in_blocks(mix, shared, key, value, scoring, long).transpose(1, 2)


def normalized(first: Tensor, second: Tensor, value: Tensor) -> Tensor:
    """Attention by features of queries and keys, (B, H, T, m): φ(q)·Σ φ(k) v / φ(q)·Σ φ(k)."""
    total = second.sum(dim=2, keepdim=True)
    return (first @ (second.mT @ value)) / (first * total).sum(dim=-1, keepdim=True)


def linear(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Linear attention with elu + 1 (Katharopoulos et al. 2020)."""
    return normalized(functional.elu(query) + 1, functional.elu(key) + 1, value)


def performer(query: Tensor, key: Tensor, value: Tensor, scaling: float, count: int = 128) -> Tensor:
    """Positive orthogonal random features of the softmax (Choromanski et al. 2021)."""
    width = query.shape[-1]
    generator = torch.Generator().manual_seed(0)
    blocks = [torch.linalg.qr(torch.randn(width, width, generator=generator))[0] for _ in range(count // width)]
    norms = torch.randn(count, width, generator=generator).norm(dim=1, keepdim=True)
    directions = (torch.cat(blocks) * norms).T  # (d, m)

    def features(states: Tensor, dims: tuple[int, ...]) -> Tensor:
        states = states * scaling**0.5
        exponents = states @ directions - states.square().sum(dim=-1, keepdim=True) / 2
        return (exponents - exponents.amax(dim=dims, keepdim=True)).exp() + 1e-6

    return normalized(features(query, (-1,)), features(key, (-1, -2)), value)


def lsh(query: Tensor, key: Tensor, value: Tensor, scaling: float, rounds: int = 2, size: int = 64) -> Tensor:
    """Balanced clusters by sorted projections, after an asymmetric transform (SMYRF, Daras et al. 2020)."""
    generator = torch.Generator().manual_seed(0)
    squares = [part.square().sum(dim=-1, keepdim=True) for part in (query, key)]
    most = sum(square.amax(dim=2, keepdim=True) for square in squares)
    rest = [(most - square).sqrt() for square in squares]
    none = torch.zeros_like(rest[0])
    longer = torch.cat([query, rest[0], none], dim=-1), torch.cat([key, none, rest[1]], dim=-1)
    outputs, sums = [], []
    for _ in range(rounds):
        direction = torch.randn(query.shape[-1] + 2, generator=generator)
        places = [(part @ direction).argsort(dim=-1).unsqueeze(-1) for part in longer]  # (B, H, T, 1)
        mine, theirs, given = (
            part.take_along_dim(place, 2).unflatten(2, (-1, size))
            for part, place in ((query, places[0]), (key, places[1]), (value, places[1]))
        )
        scores = mine @ theirs.mT * scaling
        back = places[0].argsort(dim=2)
        outputs.append((scores.softmax(dim=-1) @ given).flatten(2, 3).take_along_dim(back, 2))
        sums.append(scores.logsumexp(dim=-1).flatten(2, 3).unsqueeze(-1).take_along_dim(back, 2))
    weights = torch.stack(sums).softmax(dim=0)
    return (torch.stack(outputs) * weights).sum(dim=0)


def additive(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Scores Σ tanh(q + k), without learned weights (Bahdanau et al. 2015); a few queries at a time."""
    parts = []
    for part in query.split(16, dim=2):
        scores = (part.unsqueeze(3) + key.unsqueeze(2)).tanh().sum(dim=-1)
        parts.append(scores.softmax(dim=-1) @ value)
    return torch.cat(parts, dim=2)


KINDS: dict[str, Any] = {
    "dense": lambda q, k, v, s: functional.scaled_dot_product_attention(q, k, v, scale=s),
    "local": local,
    "summaries, stride:16": lambda q, k, v, s: local(q, k, v, s, "stride:16"),
    "summaries, mean:64": lambda q, k, v, s: local(q, k, v, s, "mean:64"),
    "Nyström, 64 landmarks": lambda q, k, v, s: nystrom(nn.Identity(), q, k, v, None, s)[0].transpose(1, 2),
    "LSH, 2 rounds of 64": lsh,
    "Performer, 128 features": performer,
    "linear, elu + 1": linear,
    "dot-product without scale": lambda q, k, v, s: functional.scaled_dot_product_attention(q, k, v, scale=1.0),
    "additive": additive,
}
LENGTHS = (128, 512, 2048, 8192)
LAYER = 3
ADDITIVE = 512
"""Tokens up to which additive attention is computed: it makes T² vectors."""


def run_layer(model: Any, ids: Tensor, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Error and milliseconds of every kind at one layer of BERT, on the states of a row of each length."""
    layer = model.encoder.layer[LAYER].attention.self
    for length in LENGTHS:
        seen: list[Tensor] = []
        with layer.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0])), torch.no_grad():
            model(input_ids=ids[:, :length])
            states = seen[0]
            parts = [
                part(states).unflatten(-1, (layer.num_attention_heads, -1)).transpose(1, 2).contiguous()
                for part in (layer.query, layer.key, layer.value)
            ]
            scaling = parts[0].shape[-1] ** -0.5
            exact = KINDS["dense"](*parts, scaling)
            spread = (exact - exact.mean(dim=2, keepdim=True)).square().sum()
            for name, kind in KINDS.items():
                if name == "additive" and length > ADDITIVE:
                    continue
                error = float((kind(*parts, scaling) - exact).square().sum() / spread)
                taken = []
                for _ in range(rounds):
                    start = time.perf_counter()
                    kind(*parts, scaling)
                    taken.append(1000 * (time.perf_counter() - start))
                yield f"{name}: {length}", {"error": error, "ms": median(taken), "threads": torch.get_num_threads()}


def table_of_kinds(result: dict[str, Any], markdown: Any) -> str:
    """Relative squared error, and milliseconds, of every kind by length."""
    rows = []
    for name in KINDS:
        cells = [result.get(f"{name}: {length}") for length in LENGTHS]
        errors = ["" if cell is None else f"{cell['error']:.3f}" for cell in cells]
        rows.append([name, *errors, *("" if cell is None else f"{cell['ms']:.1f}" for cell in cells)])
    headings = [*(f"error, {length}" for length in LENGTHS), *(f"ms, {length}" for length in LENGTHS)]
    return markdown(["one layer", *headings], rows)
