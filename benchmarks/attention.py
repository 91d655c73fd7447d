"""Attention blocks in turn: the original's, the paper's formula as written, and this layer on each of its paths.

A block is the query, key and value projections and the attention, without the output projection and without gradient.
The original is transformers' BERT layer with `scaled_dot_product_attention`; the formula multiplies, adds the content
bias, takes the softmax and multiplies. The rule in `collab/modeling/collab_kernel.py` comes from this table: where
`auto` is not the faster of `fused` and `matmul` by more than the noise, it needs another look.

    python benchmarks/attention.py                   # float32 on the CPU, about five minutes on two cores
    python benchmarks/attention.py --dtype bfloat16  # or float16
    python benchmarks/attention.py --device cuda

Writes results/attention.json, .md and .png (with the device and dtype in the name where they are others).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import COLORS, RESULTS, machine, markdown, shuffled_rounds, write
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention

from collab.modeling.collab_attention import CollaborativeSelfAttention
from collab.modeling.collab_config import AttentionSpec

WIDTHS = (768, 384)
SHAPES = ((8, 32), (8, 128), (2, 512), (1, 32), (1, 512))
HEADS = 12
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """One converted layer."""

    form: str
    part: int
    """R is D over this."""
    content: str

    def spec(self, width: int) -> AttentionSpec:
        return AttentionSpec(self.form, width // self.part, content=self.content)


CASES = [
    Case("tucker", HEADS, "folded"),
    Case("tucker", HEADS, "exact"),
    Case("concat", 3, "exact"),
    Case("concat", 3, "folded"),
    Case("concat", 2, "exact"),
    Case("cp", 6, "exact"),
    Case("cp", 3, "exact"),
    Case("cp", 3, "folded"),
    Case("cp", 2, "exact"),
]


def formula(layer: CollaborativeSelfAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """The layer's scores and outputs, written as in the paper (equation 9)."""
    query, key, value = layer.queries(x), layer.keys(x), layer.values(x)
    scores = torch.matmul(query, key.transpose(-1, -2))  # (B, H, T, S)
    content = layer.bias(x)
    if content is not None:
        scores = scores + content.unsqueeze(2)
    scores = scores * layer.scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(scores.softmax(dim=-1), value).transpose(1, 2).flatten(-2)


def block(width: int, case: Case, path: str, device: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A call of one layer on (x, mask)."""
    config = BertConfig(hidden_size=width, num_attention_heads=HEADS, attn_implementation="sdpa")
    layer = CollaborativeSelfAttention(BertSelfAttention(config, layer_idx=0), case.spec(width), config)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    layer.to(device, dtype).eval()
    if path == "formula":
        return lambda hidden_states, attention_mask=None: formula(layer, hidden_states, attention_mask)
    layer.path = path
    return layer


def original(width: int, device: str, dtype: torch.dtype) -> Callable[..., Any]:
    """The native layer."""
    config = BertConfig(hidden_size=width, num_attention_heads=HEADS, attn_implementation="sdpa")
    return BertSelfAttention(config, layer_idx=0).to(device, dtype).eval()


def measure(width: int, batch: int, length: int, padded: bool, device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Every case and path on one shape, in turn with the original."""
    torch.manual_seed(0)
    inputs = {"hidden_states": torch.randn(batch, length, width, device=device, dtype=dtype)}
    if padded:  # the last row is half as long; as transformers gives it
        seen = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
        seen[-1, ..., length // 2 :] = False
        inputs["attention_mask"] = seen.expand(-1, -1, length, -1)
    named: dict[tuple[Case, str] | None, Callable[..., Any]] = {None: original(width, device, dtype)}
    for case in CASES:
        for path in ("auto", "fused", "matmul", "formula"):
            named[case, path] = block(width, case, path, device, dtype)
    repeats = max(1, 1024 // (batch * length))  # a call of a small shape is too short for the clock
    runs = [(call, [inputs] * repeats) for call in named.values()]
    rounds = shuffled_rounds(runs, ROUNDS)
    rows = []
    for number, name in enumerate(named):
        if name is None:
            continue
        case, path = name
        ratios = [seconds[0] / seconds[number] for seconds in rounds]
        rows.append(
            {
                "width": width,
                "shape": [batch, length],
                "padded": padded,
                "form": case.form,
                "rank": width // case.part,
                "content": case.content,
                "path": path,
                "milliseconds": 1e3 * median(seconds[number] for seconds in rounds) / repeats,
                "original": 1e3 * median(seconds[0] for seconds in rounds) / repeats,
                "faster": median(ratios),
                "quartiles": np.quantile(ratios, (0.25, 0.75)).tolist(),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """How many times as fast as the original, a row for each layer, a column for each shape."""
    sections = []
    for width in WIDTHS:
        for padded in (False, True):
            mine = [row for row in rows if row["width"] == width and row["padded"] == padded]
            if not mine:
                continue
            shapes = list(dict.fromkeys(tuple(row["shape"]) for row in mine))
            cells = []
            for form, rank, content in dict.fromkeys((row["form"], row["rank"], row["content"]) for row in mine):
                cells.append([f"{form}, {rank}, {content}"])
                for shape in shapes:
                    same = {
                        row["path"]: row
                        for row in mine
                        if (row["form"], row["rank"], row["content"], tuple(row["shape"]))
                        == (form, rank, content, shape)
                    }
                    paths = " / ".join(f"{same[path]['faster']:.2f}" for path in ("fused", "matmul", "formula"))
                    cells[-1].append(f"**{same['auto']['faster']:.2f}** ({paths})")
            times = []
            for shape in shapes:
                times.append(next(row["original"] for row in mine if tuple(row["shape"]) == shape))
            cells.append(["the original, ms", *(f"{milliseconds:.2f}" for milliseconds in times)])
            heading = f"D = {width}, {'the last row padded' if padded else 'no padding'}"
            sections.append(
                f"### {heading}\n\n"
                + markdown(["form, R, content", *(f"{batch}×{length}" for batch, length in shapes)], cells)
            )
    note = "Times as fast as the original: **as chosen** (fused / matmul / the paper's formula). Medians in turn."
    return "\n\n".join([*sections, note])


def figure(rows: list[dict[str, Any]], name: str) -> None:
    """As chosen against the formula, over lengths."""
    chosen = (("tucker", HEADS, "folded"), ("concat", 3, "exact"), ("cp", 3, "exact"))
    shapes = [list(shape) for shape in SHAPES[:3]]
    _, axes = plt.subplots(1, len(WIDTHS), figsize=(4.2 * len(WIDTHS), 3.2), sharey=True, layout="constrained")
    for axis, width in zip(axes, WIDTHS, strict=True):
        for form, part, content in chosen:
            for path, style in (("auto", "-"), ("formula", ":")):
                wanted = (width, form, width // part, content, path, False)
                mine = {
                    tuple(row["shape"]): row["faster"]
                    for row in rows
                    if (row["width"], row["form"], row["rank"], row["content"], row["path"], row["padded"]) == wanted
                }
                label = f"{form}, D/{part}" + (", the formula" if path == "formula" else "")
                heights = [mine[tuple(shape)] for shape in shapes]
                axis.plot(range(len(shapes)), heights, style, marker="o", color=COLORS[form], label=label)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(shapes)), [f"{batch}×{length}" for batch, length in shapes])
        axis.set(title=f"D = {width}", xlabel="sequences × tokens")
    axes[0].set_ylabel("times as fast as the original")
    axes[-1].legend(fontsize=7)
    plt.savefig(RESULTS / f"{name}.png", dpi=200)
    plt.close()


def main() -> None:
    """Measures every shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    load = os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for width in WIDTHS:
            for batch, length in SHAPES:
                rows += measure(width, batch, length, False, arguments.device, dtype)
            for batch, length in SHAPES[1:3]:
                rows += measure(width, batch, length, True, arguments.device, dtype)
    others = [setting for setting in (arguments.device, arguments.dtype) if setting not in ("cpu", "float32")]
    name = "-".join(["attention", *others])
    result = {"machine": machine(), "device": arguments.device, "dtype": arguments.dtype, "load": load, "rows": rows}
    write(name, result, table(rows))
    figure(rows, name)


if __name__ == "__main__":
    main()
