"""Models that write, compressed: speed and memory of real shapes.

A Marian of the shape of the opus-mt checkpoints, a GPT-2 with 4 of its 12 layers and a Whisper (``tiny``), with their
own vocabularies and random weights: they cost what trained ones cost, and what they write means nothing (BLEU of a
trained translator: benchmarks/compressed_translation.py). Of what the decoder's layers read to write a token, a half or
a third is kept, or half of its layers are left out. A model writes exactly as many tokens as it is asked for, greedily.

    python benchmarks/writing.py [--model Whisper]    # all three: half an hour on two idle cores
    python benchmarks/writing.py --rehearse           # tiny models, to see that it runs

Writes results/writing.json and .md; a model is kept as it finishes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import transformers
from common import both_sides, kept, machine, markdown, my_turn, write, writing_speeds
from generation import Shape, decoder, marian
from transformers import PreTrainedModel, WhisperConfig, WhisperForConditionalGeneration

import collab
from collab.models.cache import cache_bytes
from collab.models.inputs import has_decoder, random_inputs, random_sources
from collab.models.layers import count_bytes

NEW, LENGTH = 64, 32
ROWS = {"1 row": 1, "8 rows": 8}


def whisper(width: int, layers: int, heads: int, words: int, positions: int) -> PreTrainedModel:
    """An untrained Whisper that reads 30 seconds; positions are those of the decoder."""
    config = WhisperConfig(
        vocab_size=words,
        d_model=width,
        max_target_positions=positions,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=2,
        **both_sides(layers=layers, attention_heads=heads, ffn_dim=4 * width),
    )
    return WhisperForConditionalGeneration(config)


BUILDERS: dict[str, Callable[..., PreTrainedModel]] = {"Marian": marian, "GPT-2": decoder, "Whisper": whisper}
REAL = {
    "Marian": Shape(512, 6, 8, 58_101, 512),
    "GPT-2": Shape(768, 4, 12, 50_257, 1024),
    "Whisper": Shape(384, 4, 6, 51_865, 448),
}
TINY = {name: Shape(32, 2, 4, 50, 128) for name in REAL}


def ways(shape: Shape) -> dict[str, dict[str, Any]]:
    """Settings of `collab.CompressionConfig`, by name."""
    return {
        "bytes .5": {"step_bytes": 0.5},
        "bytes .33": {"step_bytes": 0.33},
        "half of the decoder's layers": {"flops": 1.0, "only": ("layers",), "drop_layers": shape.layers // 2},
    }


def measured(name: str, shape: Shape, rounds: int) -> list[dict[str, Any]]:
    """A row for the original and for each way: speed by number of rows, and memory."""
    torch.manual_seed(0)
    original = BUILDERS[name](**asdict(shape)).eval()
    calibration = collab.calibrate(original, [random_inputs(original, 4, LENGTH) for _ in range(8)])
    stacks = {"stacks": ("decoder",)} if has_decoder(original) else {}
    models: dict[str, PreTrainedModel] = {"original": original}
    read = {"original": 1.0}
    for way, settings in ways(shape).items():
        compression = collab.compress(original, collab.CompressionConfig(**settings, **stacks), calibration)
        models[way] = compression.model.eval()
        read[way] = compression.report.step_bytes_with_vocabulary.ratio
    rows = []
    speeds = {
        size: writing_speeds(models, random_sources(original, count, LENGTH), NEW, rounds)
        for size, count in ROWS.items()
    }
    for way, model in models.items():
        cache = cache_bytes(model)
        assert cache is not None
        rows.append(
            {
                "model": name,
                "way": way,
                "read": read[way],
                "megabytes": count_bytes(model.parameters()) / 1e6,
                "cache": asdict(cache),
                "speed": {size: speed[way] for size, speed in speeds.items()},
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each model."""
    headings = ["", "bytes of a step", "MB of weights", "bytes of a token in the cache"]
    headings += [f"times as fast, {size}" for size in ROWS] + [f"reading, {size}" for size in ROWS]
    cells = []
    for row in rows:
        speeds = ["{ratio:.2f} ({low:.2f} to {high:.2f})".format(**row["speed"][size]["writing"]) for size in ROWS]
        if row["way"] == "original":
            speeds = ["{tokens_per_second:.0f}/s".format(**row["speed"][size]["writing"]) for size in ROWS]
        cells.append(
            [
                f"{row['model']}, {row['way']}",
                f"{row['read']:.2f}",
                f"{row['megabytes']:.0f}",
                f"{row['cache']['keys'] + row['cache']['values']:,}",
                *speeds,
                *("{ratio:.2f}".format(**row["speed"][size]["reading"]) for size in ROWS),
            ]
        )
    return markdown(headings, cells)


def main() -> None:
    """Measures the models that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=tuple(BUILDERS))
    parser.add_argument("--rehearse", action="store_true", help="tiny models, in results/writing-rehearsal.*")
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()
    result_name, shapes, rounds = ("writing-rehearsal", TINY, 1) if chosen.rehearse else ("writing", REAL, 3)
    for name in chosen.model or BUILDERS:
        if any(row["model"] == name for row in kept(result_name).get("rows", [])):
            continue
        rows = measured(name, shapes[name], rounds)
        with my_turn(result_name):
            every = [*kept(result_name).get("rows", []), *rows]
            write(result_name, {"machine": machine(), "rows": every}, table(every))


if __name__ == "__main__":
    main()
