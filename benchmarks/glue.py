"""The paper's protocol on real tasks, with the control that it lacks: fine-tune, convert, fine-tune again or heal.

For SST-2, CoLA and STS-B, from the demo checkpoint:

1. ``original``: fine-tuned.
2. ``control``: the original fine-tuned a second time, as long as the conversions are.
3. For every form and part of the query/key parameters: ``converted`` (calibrated on the task's training sentences,
   nothing trained), ``tuned`` (then fine-tuned as the control) and ``healed`` (instead: without labels, against 1).

    python benchmarks/glue.py                    # about two hours a task on one core: one seed, part of SST-2 again
    python benchmarks/glue.py --full             # a GPU: all rows, three seeds
    python benchmarks/glue.py --task sst2        # one task; may be given several times
    python benchmarks/glue.py --form cp          # one form, likewise

Metrics are those of the development sets (accuracy, Matthews correlation, Spearman correlation), with 95 % bootstrap
intervals. Writes results/glue.json, .md and .png. Rows are kept as they finish, and a run that was stopped goes on; the
models are in benchmarks/work meanwhile. Tasks may run side by side, in a process each, and so may forms once the task
has its original and its control.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from common import COLORS, RESULTS, demo_folder, kept, machine, markdown, my_turn, shared_data, write

import collab
from collab.data.batches import Feature
from collab.data.encoding import Collate, encode, prepare_eval
from collab.evaluation.metrics import intervals
from collab.evaluation.predict import Columns, predictions

FORMS = ("cp", "tucker", "concat")
PARTS = (1 / 2, 1 / 3, 1 / 6)
WORK = Path(__file__).parent / "work"


@dataclass(frozen=True)
class Setting:
    """How long a task is trained: epochs the first time, rows and epochs the second, steps of healing."""

    first: float
    again: float
    samples: int | None
    heal_steps: int


QUICK = {
    "sst2": Setting(3, 1, 8_000, 150),
    "cola": Setting(4, 1, None, 150),
    "stsb": Setting(4, 1, None, 150),
}
FULL = {name: Setting(3, 3, None, 1000) for name in QUICK}


class Bench:
    """One task with one seed: its data, and a folder for its models."""

    def __init__(self, name: str, setting: Setting, seed: int) -> None:
        self.name = name
        self.setting = setting
        self.task = collab.task_named(f"glue/{name}")
        self.run = collab.RunOptions(learning_rate=1e-4, weight_decay=0.01, precision="bfloat16", seed=seed)
        self.folder = WORK / f"{name}-{seed}-{setting.first:g}-{setting.again:g}"
        self.folder.mkdir(parents=True, exist_ok=True)
        data = shared_data() / "data"
        if name == "sst2":
            files, columns, self.label = ("sst2/train.tsv", "sst2/dev.tsv"), ("sentence",), "label"
        elif name == "cola":
            files, columns, self.label = ("cola/in_domain_train.tsv", "cola/in_domain_dev.tsv"), ("3",), "1"
        else:
            files, columns, self.label = ("stsb/train.csv", "stsb/dev.csv"), ("0", "1"), "2"
        self.controls: Columns | None = None
        self.train, self.dev = (collab.DataSource(str(data / file), columns) for file in files)

    def original(self) -> Path:
        """The fine-tuned original."""
        output = self.folder / "original"
        if not output.exists():
            self.finetune(demo_folder(), output, self.setting.first, None)
        return output

    def again(self, model: Path, output: Path) -> None:
        """The second fine-tuning."""
        self.finetune(model, output, self.setting.again, self.setting.samples)

    def convert(self, form: str, part: float, output: Path, healed: bool) -> None:
        """A conversion of the fine-tuned original, calibrated, and healed if wanted, on the training sentences."""
        text = self.train  # without its labels
        heal = collab.HealRequest(text, self.healing(self.setting.heal_steps)) if healed else None
        collab.checkpoints.convert(
            str(self.original()),
            output,
            collab.ConversionConfig(params=part, form=form),
            calibration=collab.CalibrationRequest(text, cache=self.folder / "moments.safetensors"),
            heal=heal,
        )

    def healing(self, steps: int) -> collab.HealOptions:
        """How to heal, in the precision and with the seed of the task's training."""
        options = collab.HealOptions()
        return replace(options, run=replace(options.run, steps=steps, precision=self.run.precision, seed=self.run.seed))

    def measure(self, folder: Path) -> dict[str, Any]:
        """The task's metric on the development set with its interval, and its difference to the control's."""
        kind, metric, control = self.task.kind, self.task.best_by, self.folder / "control"
        answers, difference = self.answers(collab.load(str(folder), auto_class=self.task.auto_class)), {}
        if folder != control and control.exists():
            if self.controls is None:
                self.controls = self.answers(collab.load(str(control), auto_class=self.task.auto_class))
            difference = intervals(kind, answers, self.controls)[metric]
        return {**intervals(kind, answers)[metric], "difference": difference}

    def answers(self, loaded: collab.Checkpoint, rows: int | None = None) -> Columns:
        """A model's predictions on the development set, or on its first rows, with the labels."""
        return predictions(self.task.kind, loaded.model, *self.features(loaded, rows))

    def features(self, loaded: collab.Checkpoint, rows: int | None = None) -> tuple[list[Feature], Collate]:
        """The development set, or its first rows, as a model takes it, and what makes batches of it."""
        task, model, tokenizer = self.task, loaded.model, loaded.tokenizer
        examples = collab.read_examples(self.dev, task, self.label, rows)
        return prepare_eval(task, model, tokenizer, encode(task, examples, model, tokenizer, None), 0)

    def finetune(self, model: Path, output: Path, epochs: float, samples: int | None) -> None:
        """Any fine-tuning, on all rows or the first ones."""
        options = collab.FinetuneOptions(run=replace(self.run, epochs=epochs))
        data = collab.LabelledData(self.train, self.dev, self.label, samples=samples)
        collab.checkpoints.finetune(str(model), output, self.task, data, options=options)


def settings(names: list[str], seeds: int) -> list[dict[str, Any]]:
    """Everything that is measured, in order."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name in names:
            rows += [{"task": name, "seed": seed, "what": what} for what in ("original", "control")]
            rows += [
                {"task": name, "seed": seed, "what": what, "form": form, "part": part}
                for part in (PARTS[1], PARTS[0], PARTS[2])
                for form in FORMS
                for what in ("converted", "tuned", "healed")
            ]
    return rows


def row(bench: Bench, setting: dict[str, Any]) -> dict[str, Any]:
    """One model, trained and measured."""
    what, start = setting["what"], time.perf_counter()
    original = bench.original()
    if what == "original":
        return setting | {"metric": bench.measure(original), "seconds": time.perf_counter() - start}
    output = bench.folder / "control"
    if what == "control":
        if not output.exists():
            bench.again(original, output)
        return setting | {"metric": bench.measure(output), "seconds": time.perf_counter() - start}
    form, part = setting["form"], setting["part"]
    output = bench.folder / f"{form}-{part:.3f}-{what}"
    converted = bench.folder / f"{form}-{part:.3f}-converted"
    if what != "healed" and not converted.exists():
        bench.convert(form, part, converted, healed=False)
    if not output.exists():
        if what == "healed":
            bench.convert(form, part, output, healed=True)
        else:
            bench.again(converted, output)
    measured = setting | {"metric": bench.measure(output), "seconds": time.perf_counter() - start}
    parameters = json.loads((output / "collab_report.json").read_text())["parameters"]
    measured |= {"query_key": parameters["query_key"]["ratio"], "model": parameters["model"]["ratio"]}
    if what != "converted":
        shutil.rmtree(output)
    if what == "healed":
        shutil.rmtree(converted, ignore_errors=True)
    return measured


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--task", action="append", choices=list(QUICK))
    parser.add_argument("--form", action="append", choices=FORMS)
    given = parser.parse_args()
    transformers.logging.disable_progress_bar()
    name = "glue-full" if given.full else "glue"
    chosen, seeds = (FULL, 3) if given.full else (QUICK, 1)
    benches: dict[tuple[str, int], Bench] = {}
    for setting in settings(given.task or list(QUICK), seeds):
        if given.form and setting.get("form", given.form[0]) not in given.form:
            continue
        if any(all(done.get(key) == value for key, value in setting.items()) for done in finished(name)):
            continue
        task, seed = setting["task"], setting["seed"]
        bench = benches.setdefault((task, seed), Bench(task, chosen[task], seed))
        measured = row(bench, setting)
        print(measured, flush=True)
        order = settings(list(QUICK), seeds)
        with my_turn(name):
            rows = [*finished(name), measured]
            rows.sort(key=lambda row: order.index({key: row[key] for key in order[-1] if key in row}))
            settled = {task_name: vars(value) for task_name, value in chosen.items()}
            result = {"machine": machine(), "settings": settled, "rows": rows}
            write(name, result, table(result))
            draw(name, result)


def finished(name: str) -> list[dict[str, Any]]:
    """Rows so far; read anew every time, because each task may have a process of its own."""
    return kept(name).get("rows", [])


def label(row: dict[str, Any]) -> str:
    """What a row is, in words."""
    names = {
        "original": "original, fine-tuned",
        "control": "original, fine-tuned again (control)",
        "converted": "converted",
        "tuned": "converted, fine-tuned again",
        "healed": "converted, healed without labels",
    }
    return f"{row['form']}, {names[row['what']]}" if "form" in row else names[row["what"]]


def table(result: dict[str, Any]) -> str:
    """A table for each task."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["task"] == task]
        seeds = sorted({row["seed"] for row in rows})
        cells = []
        for first in [row for row in rows if row["seed"] == seeds[0]]:
            same = [row for row in rows if label(row) == label(first) and row.get("part") == first.get("part")]
            values = [100 * row["metric"]["value"] for row in same]
            difference = first["metric"].get("difference") or {}
            cells.append(
                [
                    label(first),
                    f"{first['query_key']:.3f}" if "form" in first else "1",
                    f"{sum(values) / len(values):.1f}",
                    f"{100 * first['metric']['low']:.1f} to {100 * first['metric']['high']:.1f}",
                    "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * difference[key] for key in ("value", "low", "high")))
                    if difference
                    else "",
                    f"{first['seconds']:.0f}",
                ]
            )
        metric = collab.task_named(f"glue/{task}").best_by
        headings = ["", "query/key left", f"{metric} ×100", "95 % interval", "less the control", "seconds"]
        if len(seeds) > 1:
            headings[2] += f", mean of {len(seeds)} seeds"
            headings[3], headings[4] = (f"{heading}, seed {seeds[0]}" for heading in headings[3:5])
        parts += [f"### {task}", markdown(headings, cells)]
    return "\n\n".join(parts)


def draw(name: str, result: dict[str, Any]) -> None:
    """The metric against the query/key parameters that are left."""
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in result["rows"]))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.5 * len(tasks), 4), layout="constrained", squeeze=False)
    styles = {"converted": (":", "o"), "healed": ("--", "s"), "tuned": ("-", "^")}
    for axis, task in zip(axes[0], tasks, strict=True):
        rows = [row for row in result["rows"] if row["task"] == task and row["seed"] == 0]
        for form in FORMS:
            for what, (line, mark) in styles.items():
                points = sorted(
                    (row["query_key"], 100 * row["metric"]["value"])
                    for row in rows
                    if row.get("form") == form and row["what"] == what
                )
                if points:
                    axis.plot(
                        *zip(*points, strict=True), line, marker=mark, color=COLORS[form], label=f"{form}, {what}"
                    )
        control = next((row for row in rows if row["what"] == "control"), None)
        if control:
            axis.axhline(100 * control["metric"]["value"], color="black", linewidth=0.8, label="control")
        axis.set(title=task, xlabel="query/key parameters left", ylabel=collab.task_named(f"glue/{task}").best_by)
    axes[0][0].legend(fontsize=6)
    figure.savefig(RESULTS / f"{name}.png", dpi=200)
    plt.close(figure)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
