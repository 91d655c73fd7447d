"""What collab does on a GPU, in one command of at most nine minutes; `--rehearse` runs all of it small, on the CPU.

- solve: collab's CP solver on CUDA against the CPU and, where tensorly is installed, against its `parafac` on CUDA;
- convert: calibrate, convert, refine and heal models of BERT-base's and BERT-large's shape, with random weights;
- compress: half of the arithmetic of the former, and its speed;
- attention: every form on one block, sdpa against the original, float32 and bfloat16;
- model: the converted and compressed models end to end, bfloat16, with and without `torch.compile`.

Every row has the peak memory of the GPU. Needs torch, transformers and what collab itself needs; a section that needs
more is left out with its reason. A section that would start after the time is over is left out, too.

    python benchmarks/gpu.py [--rehearse] [--minutes 9]

Writes results/gpu.json and .md, or results/gpu-rehearsal.json and .md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from common import machine, markdown, shuffled_rounds, write
from transformers import BertConfig, BertModel, PreTrainedModel

import collab
from collab.decomposition import HeadTensor, SolverOptions, decompose_concat, decompose_cp
from collab.modeling.collab_attention import CollaborativeSelfAttention
from collab.modeling.collab_config import AttentionSpec

Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where it runs, and how large.

    Attributes:
        device: ``cuda``, or ``cpu`` for the rehearsal.
        shapes: widths, heads and layers of the models, by name.
        batch: rows and tokens of a batch.
        rows: rows to calibrate on.
        steps: steps of healing.
    """

    device: str
    shapes: dict[str, tuple[int, int, int]]
    batch: tuple[int, int]
    rows: int
    steps: int


GPU = Place("cuda", {"BERT-base": (768, 12, 12), "BERT-large": (1024, 16, 24)}, (32, 128), 1024, 100)
REHEARSAL = Place("cpu", {"BERT-base": (96, 12, 2), "BERT-large": (128, 16, 2)}, (4, 32), 64, 4)


@contextmanager
def measured(place: Place, row: Row) -> Iterator[None]:
    """Adds the seconds and the peak memory of what runs inside."""
    if place.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    yield
    if place.device == "cuda":
        torch.cuda.synchronize()
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
    row["seconds"] = time.perf_counter() - start


def original(place: Place, name: str) -> PreTrainedModel:
    """A model with random weights."""
    width, heads, layers = place.shapes[name]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522 if place.device == "cuda" else 500,
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * width,
    )
    return BertModel(config).eval().to(place.device)


def batch(place: Place, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A batch of random tokens."""
    tokens = torch.randint(5, model.config.vocab_size, place.batch, device=place.device)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def solve(place: Place) -> Iterator[Row]:
    """The CP solver at R = D/2 on a tensor of each shape."""
    for name, (width, heads, _) in place.shapes.items():
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(width, width, generator=generator, dtype=torch.float64) for _ in range(2))
        errors = {}
        for device in dict.fromkeys(("cpu", place.device)):
            tensor = HeadTensor(query.to(device), key.to(device), heads)
            row: Row = {"what": f"solve cp R = {width // 2}, {name}, {device}"}
            with measured(place, row):
                options = SolverOptions()
                start = decompose_concat(tensor, width // 2)
                solution = decompose_cp(tensor.to(options.dtype), start.to(options.dtype), options)
            errors[device] = row["error"] = solution.factors.to(tensor.query).relative_error(tensor)
            yield row
        yield from parafac(place, name, HeadTensor(query.to(place.device), key.to(place.device), heads), width // 2)


def parafac(place: Place, name: str, tensor: HeadTensor, rank: int) -> Iterator[Row]:
    """tensorly's solver on the dense tensor, as many sweeps as the reference implementation allows."""
    import tensorly
    from tensorly.decomposition import parafac as rival

    dense = tensor.to(torch.float32).dense()
    row: Row = {"what": f"tensorly parafac R = {rank}, {name}, {place.device}"}
    sweeps = 100 if place.device == "cuda" else 3
    with tensorly.backend_context("pytorch"):
        with measured(place, row):
            factors, errors = rival(
                dense, rank, init="random", tol=1e-6, n_iter_max=sweeps, random_state=0, return_errors=True
            )
        del factors
    row["error"] = float(errors[-1])
    yield row


def convert(place: Place) -> Iterator[Row]:
    """Calibrates, converts with refinement, and heals."""
    for name in place.shapes:
        model = original(place, name)
        row: Row = {"what": f"calibrate {name}, {place.rows} rows of random words"}
        rows = [batch(place, model) for _ in range(place.rows // place.batch[0])]
        with measured(place, row):
            calibration = collab.calibrate(model, rows)
        yield row
        row = {"what": f"convert and refine {name}, cp R = D/3"}
        with measured(place, row):
            config = collab.ConversionConfig(rank=model.config.hidden_size // 3)
            conversion = collab.convert(model, config, calibration=calibration)
        yield row
        row = {"what": f"heal {name}, {place.steps} steps"}
        run = collab.RunOptions(1e-4, steps=place.steps, evaluations=1, precision="auto", device=place.device)
        with measured(place, row):
            collab.heal(conversion.model, model, options=collab.HealOptions("factors", 64 * 8, 32, run=run))
        yield row


def compress(place: Place) -> Iterator[Row]:
    """Half of the arithmetic."""
    model = original(place, "BERT-base")
    rows = [batch(place, model) for _ in range(place.rows // place.batch[0])]
    row: Row = {"what": "compress BERT-base to half"}
    with measured(place, row):
        config = collab.CompressionConfig(flops=0.5, length=place.batch[1])
        smaller = collab.compress(model, config, collab.calibrate(model, rows)).model
    yield row
    yield from end_to_end(place, model, {"compressed to half": smaller})


def attention(place: Place) -> Iterator[Row]:
    """One block: projections and attention, every form beside the original's layer."""
    from transformers.models.bert.modeling_bert import BertSelfAttention

    width, heads, _ = place.shapes["BERT-base"]
    config = BertConfig(hidden_size=width, num_attention_heads=heads, attn_implementation="sdpa")
    for dtype in (torch.float32, torch.bfloat16):
        layers: dict[str, Callable[..., Any]] = {"original": BertSelfAttention(config, layer_idx=0)}
        for form, rank in (("cp", width // 3), ("tucker", width // heads), ("concat", width // 3)):
            spec = AttentionSpec(form, rank, content="exact")
            layers[f"{form} R = {rank}"] = CollaborativeSelfAttention(
                BertSelfAttention(config, layer_idx=0), spec, config
            )
        for layer in layers.values():
            for parameter in layer.parameters():  # type: ignore[attr-defined]
                torch.nn.init.normal_(parameter, std=0.05)
            layer.to(place.device, dtype).eval()  # type: ignore[attr-defined]
        states = {"hidden_states": torch.randn(*place.batch, width, device=place.device, dtype=dtype)}
        yield from compared(f"attention block, {dtype}", layers, states)


def model(place: Place) -> Iterator[Row]:
    """A converted model in bfloat16, as it is and compiled."""
    native = original(place, "BERT-base")
    config = collab.ConversionConfig(rank=native.config.hidden_size // 3, form="tucker", refine="none")
    converted = collab.convert(native, config).model
    yield from end_to_end(place, native, {"tucker R = D/3": converted})


def end_to_end(place: Place, native: PreTrainedModel, others: dict[str, PreTrainedModel]) -> Iterator[Row]:
    """Whole models in bfloat16, eager and compiled."""
    models = {name: network.to(torch.bfloat16) for name, network in ({"original": native} | others).items()}
    inputs = batch(place, native)
    yield from compared("model, bfloat16", models, inputs)
    if place.device == "cuda":  # compiling for a CPU needs a C++ compiler
        compiled = {name: torch.compile(network) for name, network in models.items()}
        yield from compared("model, bfloat16, compiled", compiled, inputs)


def compared(what: str, calls: dict[str, Callable[..., Any]], inputs: dict[str, torch.Tensor]) -> Iterator[Row]:
    """Times of calls in turn, as ratios to the first."""
    with torch.no_grad():
        rounds = shuffled_rounds([(call, [inputs]) for call in calls.values()], 15)
    for number, name in enumerate(calls):
        row = {"what": f"{what}: {name}", "seconds": median(taken[number] for taken in rounds)}
        row["faster"] = median(taken[0] / taken[number] for taken in rounds)
        yield row


def table(rows: list[Row]) -> str:
    """All rows."""
    cells = []
    for row in rows:
        memory = f"{row['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in row else ""
        error = f"{row['error']:.5f}" if "error" in row else ""
        faster = f"{row['faster']:.2f}" if "faster" in row else ""
        cells.append(
            [row["what"], f"{row['seconds']:.4g}" if "seconds" in row else row["left_out"], faster, error, memory]
        )
    return markdown(["", "seconds", "times the original", "error", "peak MiB"], cells)


def main() -> None:
    """Runs every section."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="all of it, small, on the CPU")
    parser.add_argument("--minutes", type=float, default=9.0)
    arguments = parser.parse_args()
    if not arguments.rehearse and not torch.cuda.is_available():
        raise SystemExit("There is no GPU here. --rehearse runs all of it, small, on the CPU.")
    place = REHEARSAL if arguments.rehearse else GPU
    name = "gpu-rehearsal" if arguments.rehearse else "gpu"
    end = time.monotonic() + 60 * arguments.minutes
    rows: list[Row] = []
    for section in (attention, model, compress, convert, solve):
        try:
            if time.monotonic() > end:
                rows.append({"what": section.__name__, "left_out": "no time left"})
                continue
            for row in section(place):
                rows.append(row)
                write(name, {"machine": machine(), "device": place.device, "rows": rows}, table(rows))
        except ImportError as error:
            rows.append({"what": section.__name__, "left_out": str(error)})
    write(name, {"machine": machine(), "device": place.device, "rows": rows}, table(rows))


if __name__ == "__main__":
    main()
