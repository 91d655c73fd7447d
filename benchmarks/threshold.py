"""Why healing lowers CoLA's Matthews correlation while it brings the answers closer to the original's.

The fine-tuned original of `benchmarks/glue.py` (made if it is missing) is converted and healed as there, at a third and
a sixth of its query/key parameters. On the development set, for each model: Matthews correlation; the same where as
large a part of the sentences is called acceptable as of the training labels; the area under the ROC curve, which knows
no threshold; the part called acceptable; and KL divergence and agreement, against the original.

    python benchmarks/threshold.py

Writes results/threshold.json and .md. Rows are kept as they finish, and a run that was stopped goes on. About half an
hour on one core, once the original is there.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from common import kept, machine, markdown, write
from glue import FORMS, QUICK, Bench
from sklearn.metrics import matthews_corrcoef, roc_auc_score

import collab

PARTS = (1 / 3, 1 / 6)


class Threshold:
    """CoLA, and what a model answers to it."""

    def __init__(self) -> None:
        self.bench = Bench("cola", QUICK["cola"], 0)
        self.labels, taught = (self.labels_of(source) for source in (self.bench.dev, self.bench.train))
        self.acceptable = float(taught.mean())
        self.original = self.log_probabilities(self.bench.original())

    def labels_of(self, source: collab.DataSource) -> np.ndarray:
        """1 where a sentence is acceptable, (N,)."""
        return np.array(collab.read_examples(source, self.bench.task, self.bench.label, None).labels, dtype=int)

    @torch.no_grad()
    def log_probabilities(self, folder: Path) -> np.ndarray:
        """Of unacceptable and acceptable, for every sentence of the development set, (N, 2)."""
        loaded = collab.load(str(folder), auto_class=self.bench.task.auto_class)
        features, collate = self.bench.features(loaded)
        answers = []
        for first in range(0, len(features), 32):
            batch = collate(features[first : first + 32])
            batch.pop("labels")
            answers.append(loaded.model.eval()(**batch).logits.log_softmax(-1))
        return torch.cat(answers).double().numpy()

    def measure(self, mine: np.ndarray) -> dict[str, float]:
        """All measures of one model, from its log-probabilities (N, 2)."""
        original = self.original
        margin = mine[:, 1] - mine[:, 0]  # (N,)
        threshold = np.quantile(margin, 1 - self.acceptable)
        return {
            "matthews": 100 * float(matthews_corrcoef(self.labels, margin > 0)),
            "matthews_at_training_share": 100 * float(matthews_corrcoef(self.labels, margin > threshold)),
            "auc": 100 * float(roc_auc_score(self.labels, margin)),
            "called_acceptable": 100 * float((margin > 0).mean()),
            "kl": float((np.exp(original) * (original - mine)).sum(1).mean()),
            "agreement": 100 * float((mine.argmax(1) == original.argmax(1)).mean()),
        }


def table(result: dict[str, Any]) -> str:
    """A row for each model."""
    headings = ["", "query/key left", "Matthews ×100", "at the training labels' share", "ROC AUC ×100"]
    headings += ["called acceptable", "KL to the original", "agreement"]
    cells = []
    for row in result["rows"]:
        shown = [f"{row[name]:.1f}" for name in ("matthews", "matthews_at_training_share", "auc")]
        shown += [f"{row['called_acceptable']:.1f} %", f"{row['kl']:.4f}", f"{row['agreement']:.1f} %"]
        cells.append([row["model"], f"{row['part']:.3f}", *shown])
    shares = f"Labelled acceptable: {result['labels']:.1f} % here, {result['training_labels']:.1f} % in training."
    return f"{shares}\n\n{markdown(headings, cells)}"


def main() -> None:
    """Every form at both sizes, before and after healing."""
    transformers.logging.disable_progress_bar()
    task = Threshold()
    shares = {"labels": 100 * float(task.labels.mean()), "training_labels": 100 * task.acceptable}
    original = {"model": "original, fine-tuned", "part": 1.0} | task.measure(task.original)
    rows = kept("threshold").get("rows", [original])
    for part, form, healed in product(PARTS, FORMS, (False, True)):
        name = f"{form}, converted{', healed' * healed}"
        if any((row["model"], row["part"]) == (name, part) for row in rows):
            continue
        with TemporaryDirectory() as folder:
            task.bench.convert(form, part, Path(folder) / "model", healed)
            rows.append({"model": name, "part": part} | task.measure(task.log_probabilities(Path(folder) / "model")))
        rows.sort(key=lambda row: -row["part"])
        result = {"machine": machine()} | shares | {"rows": rows}
        write("threshold", result, table(result))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
