"""Products of a few tokens and a weight: torch's linear layer against what a step of writing uses.

A step of writing multiplies one token of each row by every weight of the model, the vocabulary's included (the last two
shapes, those of opus-mt and GPT-2). Microseconds in float32, weights read in turn from 60 MB of them or more, so that
they come from memory as in a step; medians of rounds in turn.

    OMP_NUM_THREADS=2 python benchmarks/few_rows.py    # two minutes

Writes results/few_rows.json and .md, and with other numbers of threads results/few_rows-THREADS.json and .md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from common import machine, markdown, write
from torch import Tensor
from torch.nn import functional

from collab.modeling.collab_step import linear_by_cost

SHAPES = ((512, 512), (512, 1536), (768, 2304), (512, 2048), (2048, 512), (512, 58_101), (768, 50_257))
TOKENS = (1, 2, 4, 8)
BYTES = 60_000_000
ROUNDS = 9


def microseconds(product: Callable[[Tensor, Tensor, Tensor], Tensor], tokens: int, weights: list[Tensor]) -> float:
    """Of one product, of all weights in turn."""
    states, bias = torch.randn(tokens, 1, weights[0].shape[1]), torch.randn(len(weights[0]))
    start = time.perf_counter()
    for weight in weights:
        product(states, weight, bias)
    return 1e6 * (time.perf_counter() - start) / len(weights)


def main() -> None:
    """Measures everything."""
    rows: list[dict[str, Any]] = []
    products = (functional.linear, linear_by_cost)
    with torch.inference_mode():
        for inputs, outputs in SHAPES:
            weights = [torch.randn(outputs, inputs) for _ in range(max(2, BYTES // (4 * inputs * outputs)))]
            for tokens in TOKENS:
                taken = [[microseconds(product, tokens, weights) for product in products] for _ in range(ROUNDS)]
                torch_time, own_time = (median(times) for times in list(zip(*taken[1:], strict=True)))
                ratio = median(theirs / ours for theirs, ours in taken[1:])
                row = {"inputs": inputs, "outputs": outputs, "tokens": tokens}
                rows.append(row | {"torch": torch_time, "collab": own_time, "ratio": ratio})
    threads = torch.get_num_threads()
    cells = [
        "{inputs} → {outputs}|{tokens}|{torch:.0f}|{collab:.0f}|{ratio:.2f}".format(**row).split("|") for row in rows
    ]
    headings = ["inputs → outputs", "tokens", "torch's linear, µs", "by cost, µs", "times as fast"]
    name = "few_rows" if threads == 2 else f"few_rows-{threads}"
    write(name, {"machine": machine(), "rows": rows}, markdown(headings, cells))


if __name__ == "__main__":
    main()
