"""Whose gradient weighs the scores in calibration: of answers drawn from the model (Fisher), or of the true labels?

The demo checkpoint is fine-tuned on SST-2 for 500 steps, then calibrated on 1,024 training sentences both ways. What
its conversions answer on the development set is compared with the fine-tuned model.

    python benchmarks/label_gradients.py

Writes results/label_gradients.json and .md. About seven minutes on two cores.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from classifiers import direction
from common import demo_folder, machine, markdown, shared_data, write

import collab
from collab.calibration import calibrate as calibrating
from collab.calibration import collect
from collab.data.encoding import collator, encode
from collab.evaluation.compare import agreement
from collab.evaluation.metrics import measure
from collab.evaluation.predict import predictions
from collab.models.outputs import Output


class LabelCollector(collect.Collector):
    """Goes back from the log-likelihood of the true labels instead of drawn ones. An experiment, not shipped."""

    labels: torch.Tensor

    def _on_call(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        LabelCollector.labels = kwargs.pop("labels")
        return super()._on_call(module, args, kwargs)


def label_directions(model: Any, output: Any, mask: Any, generator: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One-hot labels less probabilities: the gradient of the log-likelihood."""
    logits = output.logits
    direction = -logits.detach().float().softmax(-1)
    return [(logits, direction.scatter_add(-1, LabelCollector.labels.view(-1, 1), torch.ones_like(direction[:, :1])))]


def main() -> None:
    """Both calibrations, two forms at two sizes."""
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    folder = shared_data() / "data" / "sst2"
    task = collab.task_named("glue/sst2")
    train, dev = (collab.DataSource(str(folder / name), ("sentence",)) for name in ("train.tsv", "dev.tsv"))
    options = collab.FinetuneOptions(run=collab.RunOptions(learning_rate=1e-4, weight_decay=0.01, steps=500))
    with tempfile.TemporaryDirectory() as work:
        data = collab.LabelledData(train, dev, "label", samples=16_000)
        collab.checkpoints.finetune(str(demo_folder()), Path(work) / "tuned", task, data, options=options)
        loaded = collab.load(str(Path(work) / "tuned"))
    model, tokenizer = loaded.model, loaded.tokenizer
    collate = collator(task, model, tokenizer)
    rows = encode(task, collab.read_examples(train, task, "label", 1024), model, tokenizer)
    judged = encode(task, collab.read_examples(dev, task, "label"), model, tokenizer)
    rows.sort(key=lambda row: len(row["input_ids"]))
    batches = [collate(rows[start : start + 8]) for start in range(0, len(rows), 8)]
    random.Random(0).shuffle(batches)
    held = [collate(judged[start : start + 32]) for start in range(0, len(judged), 32)]
    bare, unseen = (
        [{key: batch[key] for key in batch if key != "labels"} for batch in group] for group in (batches, held)
    )

    with patch.object(Output, "direction", lambda answer, generator: direction("sampled", answer, generator)):
        calibrations = {"drawn from the model": collab.calibrate(model, bare)}
    with (
        patch.object(collect, "_directions", label_directions),
        patch.object(calibrating, "Collector", LabelCollector),
    ):
        calibrations["true labels"] = collab.calibrate(model, batches)

    results = []
    for form in ("cp", "concat"):
        for part in (1 / 3, 1 / 6):
            for name, calibration in calibrations.items():
                config = collab.ConversionConfig(params=part, form=form, refine="none", compare=False)
                converted = collab.convert(model, config, calibration=calibration).model
                accuracy = measure(task.kind, predictions(task.kind, converted, judged, collate))["accuracy"]
                agreed = agreement(model, converted, unseen) or {}
                results.append({"form": form, "params": part, "gradient": name, "accuracy": accuracy, **agreed})
                print(results[-1], flush=True)
    original = measure(task.kind, predictions(task.kind, model, judged, collate))["accuracy"]
    result = {"machine": machine(), "accuracy": original, "rows": results}
    cells = [
        [
            f"{row['form']}, {row['params']:.0%}",
            row["gradient"],
            f"{100 * row['accuracy']:.1f}",
            f"{row['kl']:.4f}",
            f"{row['top1']:.4f}",
        ]
        for row in results
    ]
    headings = ["form, query/key left", "gradient of", "accuracy", "KL to the original", "same answer"]
    write("label_gradients", result, f"Fine-tuned: accuracy {100 * original:.1f}.\n\n{markdown(headings, cells)}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
