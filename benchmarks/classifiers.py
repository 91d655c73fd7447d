"""Which direction of a classifier's logits calibration should measure changes along: SST-2 and CoLA, no training.

The demo checkpoint is fine-tuned on each task (SST-2 1,000 steps, CoLA 800) and converted at a third and a sixth of its
query/key dimensions, calibrated on 1,024 training sentences: divergence from the fine-tuned model's answers on the
development set, agreement with them, and the task's metric. What is compared, for logits with probabilities p:

- ``sampled``: e_c - p with a class c drawn from p, the gradient of the log-likelihood of a sample;
- ``tempered 2``, ``4``: the same with p at that temperature;
- ``uniform``: the same with p uniform, whatever the logits;
- ``smoothed``: the same with p mixed with three parts in ten of the uniform distribution;
- ``Gaussian .1``, ``.3``: sampled, with so much Gaussian noise added, about its mean over the classes;
- ``fixed size``: what collab does (`Output.direction`): the second moment of ``sampled``, and one size at every draw.

    python benchmarks/classifiers.py

Writes results/classifiers.json and .md. Rows are kept as they finish, and a run that was stopped goes on. About an hour
on two cores; models are in benchmarks/work meanwhile.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
import transformers
from common import demo_folder, kept, machine, markdown, shared_data, write
from torch import Tensor

import collab
from collab.data.encoding import encode, prepare_eval
from collab.evaluation.metrics import measure
from collab.evaluation.predict import predictions
from collab.models.outputs import Output

WORK = Path(__file__).parent / "work"
STEPS = {"sst2": 1000, "cola": 800}
FORMS = ("cp", "tucker", "concat")
RANKS = (64, 128)
COMPARED = ("sampled", "fixed size")
SETTING = ("task", "direction", "seed", "form", "rank", "refine")


def smoothed(logits: Tensor, part: float) -> Tensor:
    """Probabilities mixed with the uniform distribution."""
    return (1 - part) * logits.softmax(-1) + part / logits.shape[-1]


PROBABILITIES = {
    "sampled": lambda logits: logits.softmax(-1),
    "tempered 2": lambda logits: (logits / 2).softmax(-1),
    "tempered 4": lambda logits: (logits / 4).softmax(-1),
    "uniform": lambda logits: smoothed(logits, 1.0),
    "smoothed": lambda logits: smoothed(logits, 0.3),
    "Gaussian .1": lambda logits: logits.softmax(-1),
    "Gaussian .3": lambda logits: logits.softmax(-1),
}


def direction(name: str, answer: Output, generator: torch.Generator) -> Tensor:
    """A direction of the logits of one class for each row, (B, C)."""
    probabilities = PROBABILITIES[name](answer.values.detach())
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    result = (-probabilities).scatter_add(-1, drawn, torch.ones_like(probabilities[:, :1]))
    if name.startswith("Gaussian"):
        noise = torch.randn(result.shape, generator=generator)
        result = result + float(name.split()[1]) * (noise - noise.mean(-1, keepdim=True))
    return result


class Bench:
    """A fine-tuned classifier and its development set."""

    def __init__(self, name: str) -> None:
        data = shared_data() / "data"
        if name == "sst2":
            files, columns, label = ("sst2/train.tsv", "sst2/dev.tsv"), ("sentence",), "label"
        else:
            files, columns, label = ("cola/in_domain_train.tsv", "cola/in_domain_dev.tsv"), ("3",), "1"
        self.task = collab.task_named(f"glue/{name}")
        self.train, dev = (collab.DataSource(str(data / file), columns) for file in files)
        folder = WORK / f"classifiers-{name}"
        if not folder.exists():
            run = collab.RunOptions(
                learning_rate=1e-4, weight_decay=0.01, steps=STEPS[name], precision="bfloat16", evaluations=3
            )
            rows = collab.LabelledData(self.train, dev, label)
            collab.checkpoints.finetune(
                str(demo_folder()), folder, self.task, rows, options=collab.FinetuneOptions(run=run)
            )
        loaded = collab.load(str(folder), auto_class=self.task.auto_class)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        examples = collab.read_examples(dev, self.task, label)
        encoded = encode(self.task, examples, self.model, self.tokenizer, None)
        self.features, self.collate = prepare_eval(self.task, self.model, self.tokenizer, encoded, 0)
        self.features = sorted(self.features, key=lambda feature: len(feature["input_ids"]))
        self.logits = self.answers(self.model)

    @torch.no_grad()
    def answers(self, model: Any) -> Tensor:
        """A model's logits on the development set, (N, C)."""
        logits = []
        for start in range(0, len(self.features), 64):
            batch = self.collate(self.features[start : start + 64])
            logits.append(model(**{name: value for name, value in batch.items() if name != "labels"}).logits)
        return torch.cat(logits)

    def metric(self, model: Any) -> float:
        """The task's metric on the development set."""
        return measure(self.task.kind, predictions(self.task.kind, model, self.features, self.collate))[
            self.task.best_by
        ]

    def judge(self, model: Any) -> dict[str, float]:
        """How far a conversion's answers are from the original's, and how good they are."""
        given, target = self.answers(model.eval()).log_softmax(-1), self.logits.log_softmax(-1)
        return {
            "kl": float((target.exp() * (target - given)).sum(-1).mean()),
            "agreement": float((given.argmax(-1) == target.argmax(-1)).float().mean()),
            "metric": self.metric(model),
        }

    def calibrate(self, name: str, seed: int) -> collab.Calibration:
        """A calibration along one kind of directions."""
        options = collab.CalibrationOptions(seed=seed)
        if name == "fixed size":
            return collab.calibrate(collab.Checkpoint(self.model, self.tokenizer), self.train, options=options)
        with patch.object(Output, "direction", lambda answer, generator: direction(name, answer, generator)):
            return collab.calibrate(collab.Checkpoint(self.model, self.tokenizer), self.train, options=options)


def settings() -> Iterator[dict[str, Any]]:
    """What is run, what matters most first: two directions with three seeds, with refinement or not; all directions."""

    def product(names: Any, seeds: Any, forms: Any, refines: Any) -> Iterator[dict[str, Any]]:
        for seed in seeds:
            for task in STEPS:
                for name in names:
                    for form in forms:
                        for rank in RANKS:
                            for refine in refines:
                                yield dict(zip(SETTING, (task, name, seed, form, rank, refine), strict=True))

    yield from product(COMPARED, (0, 1, 2), ("cp",), ("none", "auto"))
    yield from product((*PROBABILITIES, "fixed size"), (0,), ("cp", "concat"), ("none",))
    yield from product(COMPARED, (0, 1, 2), FORMS, ("none", "auto"))


def main() -> None:
    """Runs what is missing."""
    argparse.ArgumentParser().parse_args()
    transformers.logging.disable_progress_bar()
    rows: list[dict[str, Any]] = kept("classifiers").get("rows", [])
    originals: dict[str, Any] = kept("classifiers").get("originals", {})
    benches: dict[str, Bench] = {}
    calibrated: tuple[Any, Any] = (None, None)
    for setting in settings():
        if any(all(row[name] == value for name, value in setting.items()) for row in rows):
            continue
        task = setting["task"]
        if task not in benches:
            bench = benches[task] = Bench(task)
            sureness = float(bench.logits.softmax(-1).max(-1).values.mean())
            originals[task] = {"metric": bench.metric(bench.model), "largest_probability": sureness}
        bench, key = benches[task], (task, setting["direction"], setting["seed"])
        if calibrated[0] != key:
            calibrated = key, bench.calibrate(setting["direction"], setting["seed"])
        start = time.process_time()
        config = collab.ConversionConfig(
            rank=setting["rank"], form=setting["form"], refine=setting["refine"], compare=False
        )
        model = collab.convert(bench.model, config, calibration=calibrated[1]).model
        rows.append(setting | {"cpu_seconds": time.process_time() - start} | bench.judge(model))
        result = {"machine": machine(), "originals": originals, "rows": rows}
        write("classifiers", result, table(result))


def table(result: dict[str, Any]) -> str:
    """All directions with one seed, and the two compared with three."""
    rows, parts = result["rows"], []
    for task, original in result["originals"].items():
        parts.append(
            f"{task}, fine-tuned: {collab.task_named(f'glue/{task}').best_by} {100 * original['metric']:.1f}, largest "
            f"probability {original['largest_probability']:.3f} on average."
        )
    names = [*PROBABILITIES, "fixed size"]
    columns = [(task, form, rank) for task in STEPS for form in ("cp", "concat") for rank in RANKS]

    def found(**wanted: Any) -> list[dict[str, Any]]:
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    cells, base = [], {}
    for name in names:
        values = []
        for task, form, rank in columns:
            here = found(task=task, form=form, rank=rank, direction=name, seed=0, refine="none")
            values.append(here[0]["kl"] if here else None)
        base = base or dict(enumerate(values))
        pairs = [(value, base[i]) for i, value in enumerate(values) if value and base[i]]
        ratio = (
            math.exp(mean(math.log(value / first) for value, first in pairs)) if len(pairs) == len(columns) else None
        )
        cells.append([name, *(f"{value:.4f}" if value else "" for value in values), f"{ratio:.2f}" if ratio else ""])
    headings = ["KL, one seed, not refined", *(f"{task} {form} {rank}" for task, form, rank in columns), "mean ratio"]
    parts.append(markdown(headings, cells))
    cells = []
    for task in STEPS:
        for form in FORMS:
            for rank in RANKS:
                for refine in ("none", "auto"):
                    for name in COMPARED:
                        same = found(task=task, form=form, rank=rank, refine=refine, direction=name)
                        what = "refined" if refine == "auto" else "not refined"
                        if same:
                            cells.append(
                                [
                                    f"{task}, {form} {rank}, {what}, {name}",
                                    str(len(same)),
                                    " ".join(f"{row['kl']:.4f}" for row in same),
                                    f"{mean(row['kl'] for row in same):.4f}",
                                    f"{100 * mean(row['agreement'] for row in same):.1f}",
                                    f"{100 * mean(row['metric'] for row in same):.1f}",
                                ]
                            )
    parts.append(markdown(["", "seeds", "KL of each", "mean KL", "agreement ×100", "metric ×100"], cells))
    return "\n\n".join(parts)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
