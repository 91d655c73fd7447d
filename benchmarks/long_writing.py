"""Writing behind a long text: bytes of the cache, and milliseconds of a token, in blocks against dense attention.

Decoders with random weights, which cost what trained ones cost: four layers of GPT-2's width, and four of the same
width with rotary positions and a key and a value for each four heads. Both have 8,000 words, to save time. Conversion
is lossless. A row is read into the cache once; then tokens are written, one with each model in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from generation import decoder
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import collab
from collab.evaluation.timing import rounds_in_turn
from collab.models.cache import cache_bytes

ROOM = 512
"""Positions for the tokens that are written."""
WORDS = 8000


def gpt2(length: int) -> PreTrainedModel:
    """Four layers of GPT-2."""
    return decoder(width=768, layers=4, heads=12, words=WORDS, positions=length)


def llama(length: int) -> PreTrainedModel:
    """Four layers with rotary positions, and keys and values that four heads share."""
    config = LlamaConfig(
        vocab_size=WORDS,
        max_position_embeddings=length,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=12,
        num_key_value_heads=3,
    )
    return LlamaForCausalLM(config)


SHAPES = {"gpt2": gpt2, "llama": llama}


class Writer:
    """A model that has read a row, and writes token after token behind it.

    Args:
        model: the model.
        row: the row, (1, T).
    """

    def __init__(self, model: PreTrainedModel, row: Tensor) -> None:
        self._model = model.eval()
        start = time.perf_counter()
        with torch.no_grad():
            self._cache = model(input_ids=row, use_cache=True, logits_to_keep=1).past_key_values
        self.seconds = time.perf_counter() - start

    def __call__(self, input_ids: Tensor) -> None:
        self._model(input_ids=input_ids, past_key_values=self._cache, use_cache=True)

    @property
    def megabytes(self) -> float:
        """What the cache holds."""
        tensors = [tensor for layer in self._cache.layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors) / 2**20


def run_writing(shape: str, length: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Time and memory of the models of a shape, behind a row of a length."""
    torch.manual_seed(0)
    native = SHAPES[shape](length + ROOM)
    local = collab.LongOptions("local")
    models = {
        "original": native,
        "dense": collab.lengthen(native, replace(local, attention="dense")).model,
        "local": collab.lengthen(native, local).model,
        "summaries": collab.lengthen(native, replace(local, attention="summaries")).model,
    }
    row = torch.randint(WORDS, (1, length))
    writers = {name: Writer(model, row) for name, model in models.items()}
    tokens = [{"input_ids": torch.randint(WORDS, (1, 1))} for _ in range(8)]
    seconds = np.array(rounds_in_turn([(writer, tokens) for writer in writers.values()], rounds))  # (rounds, models)
    dense = seconds[:, list(models).index("dense")]
    for number, (name, writer) in enumerate(writers.items()):
        ratios, cache = dense / seconds[:, number], cache_bytes(models[name])
        assert cache is not None
        yield (
            f"{shape}: {name}: {length}",
            {
                "megabytes": writer.megabytes,
                "most": (cache.keys + cache.values) * (length + ROOM) / 2**20
                if cache.held is None
                else cache.held / 2**20,
                "ms": 1000 * float(np.median(seconds[:, number])) / len(tokens),
                "ratio": float(np.median(ratios)),
                "lowest": float(ratios.min()),
                "highest": float(ratios.max()),
                "reading": writer.seconds,
                "rounds": rounds,
                "threads": torch.get_num_threads(),
            },
        )


def table_of_writing(result: dict[str, Any], markdown: Any) -> str:
    """Bytes of the cache, milliseconds of a token and seconds of reading, behind a row."""
    rows = []
    for name, entry in result.items():
        shape, kind, length = name.split(": ")
        times = f"{entry['ratio']:.2f} ({entry['lowest']:.2f}–{entry['highest']:.2f})"
        rows.append(
            [
                f"{shape}, {kind}",
                length,
                f"{entry['megabytes']:.1f}",
                f"{entry['most']:.1f}",
                f"{entry['ms']:.1f}",
                times,
                f"{entry['reading']:.1f}",
            ]
        )
    headings = ["writing", "behind", "cache, MB", "at most, MB", "ms a token", "times as fast as dense", "reading, s"]
    return markdown(headings, rows)
