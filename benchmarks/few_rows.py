"""Products of a few tokens and a weight: torch's linear layer against what a step of writing uses.

A step of writing multiplies one token of each row by every weight of the model, the vocabulary's included (58,101 words
are those of opus-mt, 50,257 those of GPT-2). GPT-2's own linear layers (`Conv1D`), which store weights transposed, are
compared with themselves. Microseconds in float32, weights read in turn from 60 MB of them or more, so that
they come from memory as in a step; medians of rounds in turn.

    OMP_NUM_THREADS=2 python benchmarks/few_rows.py    # two minutes

Writes results/few_rows.json and .md, and with other numbers of threads results/few_rows-THREADS.json and .md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from common import machine, markdown, write
from torch import Tensor
from torch.nn import functional

from collab.modeling.collab_step import conv1d_by_cost, linear_by_cost

SHAPES = ((512, 512), (512, 1536), (768, 2304), (512, 2048), (2048, 512), (512, 58_101), (768, 50_257))
CONV1D = ((768, 3072), (3072, 768))
TOKENS = (1, 2, 4, 8, 16, 32)
BYTES = 60_000_000
ROUNDS = 9

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def conv1d(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As transformers computes it."""
    return torch.addmm(bias, states.view(-1, states.shape[-1]), weight).view(*states.shape[:-1], weight.shape[1])


def compared(inputs: int, outputs: int, tokens: int, products: Sequence[Product], transposed: bool) -> dict[str, Any]:
    """A row: two products of the same numbers, in turn."""
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    weights = [torch.randn(shape) for _ in range(max(2, BYTES // (4 * inputs * outputs)))]
    states, bias = torch.randn(tokens, 1, inputs), torch.randn(outputs)
    taken = [[microseconds(product, states, weights, bias) for product in products] for _ in range(ROUNDS)]
    torch_time, own_time = (median(times) for times in list(zip(*taken[1:], strict=True)))
    ratio = median(theirs / ours for theirs, ours in taken[1:])
    name = f"{'Conv1D ' * transposed}{inputs} → {outputs}"
    return {"product": name, "tokens": tokens, "torch": torch_time, "collab": own_time, "ratio": ratio}


def microseconds(product: Product, states: Tensor, weights: list[Tensor], bias: Tensor) -> float:
    """Of one product, of all weights in turn."""
    start = time.perf_counter()
    for weight in weights:
        product(states, weight, bias)
    return 1e6 * (time.perf_counter() - start) / len(weights)


def main() -> None:
    """Measures everything."""
    with torch.inference_mode():
        rows = [
            *(
                compared(*shape, tokens, (functional.linear, linear_by_cost), False)
                for shape in SHAPES
                for tokens in TOKENS
            ),
            *(compared(*shape, tokens, (conv1d, conv1d_by_cost), True) for shape in CONV1D for tokens in TOKENS),
        ]
    threads = torch.get_num_threads()
    cells = ["{product}|{tokens}|{torch:.0f}|{collab:.0f}|{ratio:.2f}".format(**row).split("|") for row in rows]
    headings = ["inputs → outputs", "tokens", "torch, µs", "by cost, µs", "times as fast"]
    name = "few_rows" if threads == 2 else f"few_rows-{threads}"
    write(name, {"machine": machine(), "rows": rows}, markdown(headings, cells))


if __name__ == "__main__":
    main()
