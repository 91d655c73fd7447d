"""What healing recovers of dropped layers: candidates with none to three of them, healed for a short and a long time.

The demo checkpoint at half and a third of its layers' arithmetic, without none, one, two or three layers, calibrated
and healed on six kinds of text. Before healing the loss is predicted, the sum of what every change alone loses; after
60, 150 and 300 steps it is measured on held-out rows, as `collab compress` does it (1 less the cosine of embeddings).
The part of the dropped layers' loss that is recovered is what the candidate is closer than one without dropped layers
and with as large a predicted loss, whose healed loss is taken to be in proportion.

    OMP_NUM_THREADS=1 python benchmarks/recovery.py [--budget half] [--steps 60]

Without options all are measured, in about half an hour. Writes results/recovery.json and .md. Rows are kept as they
finish.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

from common import demo_folder, kept, machine, markdown, my_turn, write
from kinds import KINDS, Judge, heal_options, texts
from transformers import PreTrainedModel

import collab
from collab.compression.compressions import Compressions
from collab.planning.allocation import Widths
from collab.planning.budget import Budget
from collab.progress import no_progress

BUDGETS = {"half": 0.5, "third": 0.33}
COUNTS = (0, 1, 2, 3)
STEPS = (60, 150, 300)
ADAM = {"batch_size": 32, "warmup": 0.1, "gradient_accumulation_steps": 1, "evaluations": 1}


class Candidates:
    """Candidates of the demo checkpoint, and what judges them.

    Args:
        calibrated: rows to calibrate on.
    """

    def __init__(self, calibrated: int) -> None:
        known = texts()
        self.mixture = collab.Mixture({kind: known[kind][0] for kind in KINDS})
        self.original = collab.load(str(demo_folder()))
        config = collab.CompressionConfig(flops=1.0, healed=True)  # the budgets come later
        calibration = collab.calibrate(self.original, self.mixture, options=collab.CalibrationOptions(calibrated, 128))
        self._compressions = Compressions(self.original.model, config, calibration, no_progress)
        self._judge = Judge()

    def chosen(self, budget: float) -> Widths:
        """The widths of least predicted loss within a part of the arithmetic, with all layers."""
        return self._compressions.within(Budget("flops", budget), 0).widths

    def arithmetic(self, widths: Widths) -> float:
        """The part of the arithmetic that is left at some widths."""
        costs = self._compressions.candidates.costs("flops")
        return costs.left(widths) / costs.whole

    def at(self, widths: Widths) -> tuple[PreTrainedModel, float]:
        """The model at some widths, not healed, and its loss."""
        candidates = self._compressions.candidates
        model = candidates.build(widths)
        return model, candidates.held_out.loss(model)

    def made(self, budget: float, dropped: int) -> tuple[PreTrainedModel, dict[str, Any]]:
        """A candidate, and what it is predicted to lose."""
        candidates = self._compressions.candidates
        option = self._compressions.within(Budget("flops", budget), dropped)
        without = [number for number, widths in enumerate(option.widths) if widths is None]
        of_layers = sum(candidates.losses_without[number] for number in without)
        model, before = self.at(option.widths)
        return model, {"predicted": option.error, "of_layers": of_layers, "before": before}

    def healed(self, model: PreTrainedModel, **settings: Any) -> dict[str, float]:
        """A copy healed as `heal_options` says: its loss, CPU seconds, and the cosine by kind."""
        model, start = copy.deepcopy(model), time.process_time()
        student = collab.Checkpoint(model, self.original.processor)
        collab.heal(student, self.original, self.mixture, options=heal_options(**settings))
        seconds = time.process_time() - start
        return {
            "after": self._compressions.candidates.held_out.loss(model),
            "cpu_seconds": seconds,
        } | self._judge.measure(model)


def recovered(row: dict[str, Any], narrowed: dict[str, Any]) -> float:
    """The part of the dropped layers' predicted loss that healing recovers beyond what it does of narrower parts."""
    as_narrowed = row["after"] * narrowed["predicted"] / narrowed["after"]
    return (row["predicted"] - as_narrowed) / row["of_layers"]


def table(rows: list[dict[str, Any]]) -> str:
    """A row for every candidate and time of healing."""
    narrowed = {(row["budget"], row["steps"]): row for row in rows if row["dropped"] == 0}
    cells = []
    for row in sorted(rows, key=lambda row: (row["budget"], row["steps"], row["dropped"])):
        alone = narrowed.get((row["budget"], row["steps"]))
        part = f"{recovered(row, alone):.2f}" if row["dropped"] and alone else ""
        losses = (f"{row[name]:.4f}" for name in ("predicted", "before", "after"))
        cosines = (f"{row[kind]:.4f}" for kind in ("STS-B", "dialogue"))
        cells.append([row["budget"], str(row["dropped"]), str(row["steps"]), *losses, part, *cosines])
    headings = ["", "dropped", "steps", "predicted", "before", "healed", "recovered", "STS-B", "dialogue"]
    return markdown(headings, cells)


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", action="append", choices=tuple(BUDGETS))
    parser.add_argument("--steps", action="append", type=int)
    chosen = parser.parse_args()
    candidates = None
    for budget in chosen.budget or BUDGETS:
        for dropped in COUNTS:
            there = {(row["budget"], row["dropped"], row["steps"]) for row in kept("recovery").get("rows", [])}
            missing = [steps for steps in chosen.steps or STEPS if (budget, dropped, steps) not in there]
            if not missing:
                continue
            candidates = candidates or Candidates(2048)
            model, before = candidates.made(BUDGETS[budget], dropped)
            for steps in missing:
                healed = candidates.healed(model, steps=steps, optimizer="adamw", joined=0.0, **ADAM)
                row = {"budget": budget, "dropped": dropped, "steps": steps} | before | healed
                with my_turn("recovery"):
                    rows = [*kept("recovery").get("rows", []), row]
                    write("recovery", {"machine": machine(), "rows": rows}, table(rows))


if __name__ == "__main__":
    main()
