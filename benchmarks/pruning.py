"""How many heads can go, by which score, in one step or several, before and after healing.

On the models of benchmarks/glue.py (the demo checkpoint fine-tuned on SST-2, CoLA and STS-B), which it trains first if
they are not there. Heads go in steps of 10 % of the model's, 0 to 90 %, least important first:

- by every score at once (one-shot), random order beside them;
- by the gradient score with new scores before every step (iterative);
- healed without labels at some fractions, one-shot;
- the same on conversions to a third of the query/key parameters (cp and tucker), by gradient.

Beside each point of the gradient's curve are parameters and measured speed, in turn with the whole model. Then: how
alike scores are on other data (in-domain and out-of-domain CoLA), and the curves of CoLA's model after each pass over
its data.

    python benchmarks/pruning.py                 # two cores, about forty minutes
    python benchmarks/pruning.py --task sst2     # one task; may be given several times
    python benchmarks/pruning.py --full          # all rows of the development sets, longer healing

Heads are scored on 256 labelled training rows (ablation: 128). Writes results/pruning.json, .md and .png. Curves are
kept as they finish, and a run that was stopped goes on. Tasks may run side by side, in a process each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from common import RESULTS, demo_folder, kept, machine, markdown, my_turn, shared_data, write
from glue import QUICK, WORK, Bench

import collab
from collab.conversion.convert import convert_losslessly
from collab.evaluation.metrics import measure
from collab.evaluation.timing import rounds_in_turn
from collab.heads.rows import HeadRows, head_rows
from collab.heads.scores import living_heads, rank_correlation, score_rows
from collab.heads.selection import least_important
from collab.modeling.collab_model import CollaborativeMixin
from collab.models.layers import attention_layers, parameters

FRACTIONS = tuple(number / 10 for number in range(10))
HEALED = (0.2, 0.4, 0.6, 0.8)
SCORES = ("gradient", "ablation", "attention_norm", "entropy", "confidence", "output_variance", "like_weights")
OTHERS = ("gradient, normalized", "random")
"""Orders that are made of scores, or of nothing."""
ROWS = 256
Importance = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Subject:
    """A fine-tuned model and the rows that it is scored and measured on."""

    bench: Bench
    loaded: collab.Checkpoint
    dev_rows: int | None

    def rows(self) -> HeadRows:
        """Labelled training rows."""
        options = collab.RowOptions(self.bench.label, samples=ROWS)
        return head_rows(self.loaded, self.bench.train, self.bench.task, options)

    def metric(self, model: Any) -> float:
        """The task's metric on the development set."""
        task = self.bench.task
        return measure(task.kind, self.bench.answers(replace(self.loaded, model=model), self.dev_rows))[task.best_by]

    def faster(self, model: Any) -> float:
        """How many times as fast as the whole model, on training rows, in turn."""
        batches = self.rows().batches(self.loaded)[::4]
        runs = [(network.eval(), batches) for network in (self.loaded.model, model)]
        rounds = rounds_in_turn(runs, 7)
        return float(np.median([whole / pruned for whole, pruned in rounds]))


def subject_of(bench: Bench, folder: Path, dev_rows: int | None) -> Subject:
    """A model in a folder with its heads in collaborative layers, so that they can go."""
    loaded = collab.load(str(folder), auto_class=bench.task.auto_class)
    if not isinstance(loaded.model, CollaborativeMixin):
        loaded = replace(loaded, model=convert_losslessly(loaded.model).model)
    return Subject(bench, loaded, dev_rows)


def importances(subject: Subject) -> dict[str, Importance]:
    """Every score, and a random order."""
    scores = score_rows(subject.loaded, subject.rows(), collab.ScoreOptions(SCORES))
    scored: dict[str, Importance] = {name: scores.importance(name) for name in SCORES}
    normalized = score_rows(subject.loaded, subject.rows(), collab.ScoreOptions(("gradient",), normalize=True))
    scored[OTHERS[0]] = normalized.importance("gradient")
    generator = np.random.default_rng(0)
    scored[OTHERS[1]] = {
        layer: {head: float(generator.random()) for head in heads} for layer, heads in scored["gradient"].items()
    }
    return scored


def at_once(subject: Subject, importance: Importance, timed: bool) -> list[dict[str, Any]]:
    """The curve of one score."""
    total = living_heads(attention_layers(subject.loaded.model))
    points = []
    for fraction in FRACTIONS:
        count = round(total * fraction)
        model = (
            collab.prune(subject.loaded.model, least_important(importance, count)).model
            if count
            else subject.loaded.model
        )
        points.append({"fraction": fraction, "heads": total - count, "value": subject.metric(model)})
        if timed:
            points[-1] |= {"parameters": parameters(model), "faster": subject.faster(model)}
    return points


def iterative(subject: Subject) -> list[dict[str, Any]]:
    """The gradient's curve with new scores before every step."""
    rows, total = subject.rows(), living_heads(attention_layers(subject.loaded.model))
    current, points = subject.loaded, []
    for fraction in FRACTIONS:
        count = living_heads(attention_layers(current.model)) - (total - round(total * fraction))
        if count:
            importance = score_rows(current, rows, collab.ScoreOptions(("gradient",))).importance("gradient")
            current = replace(current, model=collab.prune(current.model, least_important(importance, count)).model)
        points.append(
            {"fraction": fraction, "heads": total - round(total * fraction), "value": subject.metric(current.model)}
        )
    return points


def healed(subject: Subject, importance: Importance, steps: int) -> list[dict[str, Any]]:
    """The gradient's curve after healing on the training sentences without their labels."""
    total, points = living_heads(attention_layers(subject.loaded.model)), []
    options = replace(subject.bench.healing(steps), samples=2048)
    for fraction in HEALED:
        model = collab.prune(subject.loaded.model, least_important(importance, round(total * fraction))).model
        collab.heal(
            collab.Checkpoint(model, subject.loaded.tokenizer),
            subject.loaded.model,
            subject.bench.train,
            options=options,
        )
        points.append({"fraction": fraction, "heads": total - round(total * fraction), "value": subject.metric(model)})
    return points


def curves(bench: Bench, dev_rows: int | None, steps: int, done: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Every curve of one task that is not done."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("original", "cp", "tucker"):
            wanted = [("one-shot", score) for score in ((*SCORES, *OTHERS) if name == "original" else SCORES[:1])]
            wanted += [("iterative", "gradient"), *([("healed", "gradient")] if name == "original" else [])]
            missing = [curve for curve in wanted if (bench.name, name, *curve) not in done]
            if not missing:
                continue
            source = bench.original()
            if name != "original":
                bench.convert(name, 1 / 3, Path(folder) / name, healed=False)
                source = Path(folder) / name
            subject = subject_of(bench, source, dev_rows)
            key = {"task": bench.name, "metric": bench.task.best_by, "model": name}
            if name == "original":
                scored = importances(subject)
            else:
                scored = {
                    "gradient": score_rows(
                        subject.loaded, subject.rows(), collab.ScoreOptions(("gradient",))
                    ).importance("gradient")
                }
            for how, score in missing:
                if how == "one-shot":
                    points = at_once(subject, scored[score], timed=score == "gradient")
                elif how == "iterative":
                    points = iterative(subject)
                else:
                    points = healed(subject, scored["gradient"], steps)
                yield key | {"how": how, "score": score, "points": points}


def likeness(bench: Bench, dev_rows: int | None) -> list[dict[str, Any]]:
    """Rank correlations of CoLA's gradient scores on training rows, in-domain and out-of-domain development rows."""
    subject = subject_of(bench, bench.original(), dev_rows)
    data = shared_data() / "data" / "cola"
    sources = {"train": bench.train} | {
        name: collab.DataSource(str(data / f"{file}.tsv"), ("3",))
        for name, file in (("in-domain", "in_domain_dev"), ("out-of-domain", "out_of_domain_dev"))
    }
    scored = {}
    for name, source in sources.items():
        for labels in (True, False):
            task = bench.task if labels else None
            options = collab.RowOptions(bench.label if labels else None, samples=ROWS)
            rows = head_rows(subject.loaded, source, task, options)
            scored[name, labels] = score_rows(subject.loaded, rows, collab.ScoreOptions(("gradient",))).importance(
                "gradient"
            )
    pairs = (("train", "in-domain"), ("in-domain", "out-of-domain"), ("train", "out-of-domain"))
    return [
        {
            "first": a,
            "second": b,
            "labels": labels,
            "correlation": rank_correlation(scored[a, labels], scored[b, labels]),
        }
        for labels in (True, False)
        for a, b in pairs
    ]


def by_pass(bench: Bench, passes: int, dev_rows: int | None, done: set[int]) -> Iterator[dict[str, Any]]:
    """CoLA's curve by gradient after each pass over its data; each pass warms up and cools down by itself."""
    folder = WORK / "cola-passes"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, passes + 1):
        output = folder / str(number)
        if not output.exists():
            bench.finetune(demo_folder() if number == 1 else folder / str(number - 1), output, 1, None)
        if number in done:
            continue
        subject = subject_of(bench, output, dev_rows)
        importance = score_rows(subject.loaded, subject.rows(), collab.ScoreOptions(("gradient",))).importance(
            "gradient"
        )
        yield {"passes": number, "points": at_once(subject, importance, timed=False)}


def table(result: dict[str, Any]) -> str:
    """The metric at every fraction."""
    parts = []
    for task in dict.fromkeys(curve["task"] for curve in result["curves"]):
        mine = [curve for curve in result["curves"] if curve["task"] == task]
        cells = []
        for curve in mine:
            values = {point["fraction"]: f"{100 * point['value']:.1f}" for point in curve["points"]}
            name = f"{curve['model']}, {curve['score']}, {curve['how']}"
            cells.append([name, *(values.get(fraction, "") for fraction in FRACTIONS)])
        headings = [f"{mine[0]['metric']} ×100 with heads gone", *(f"{fraction:.0%}" for fraction in FRACTIONS)]
        parts += [f"### {task}", markdown(headings, cells)]
        for curve in mine:
            if "faster" in curve["points"][0]:
                cells = [
                    [what, *(text(point) for point in curve["points"])]
                    for what, text in (
                        (
                            "parameters of attention, millions",
                            lambda point: f"{point['parameters']['attention'] / 1e6:.2f}",
                        ),
                        ("of the model, millions", lambda point: f"{point['parameters']['model'] / 1e6:.2f}"),
                        ("times as fast as whole", lambda point: f"{point['faster']:.2f}"),
                    )
                ]
                headings = [f"{curve['model']}, by gradient", *(f"{fraction:.0%}" for fraction in FRACTIONS)]
                parts.append(markdown(headings, cells))
    if result["likeness"]:
        cells = [
            [f"{row['first']} and {row['second']}", "yes" if row["labels"] else "no", f"{row['correlation']:.2f}"]
            for row in result["likeness"]
        ]
        parts += ["### Rank correlation of CoLA's scores", markdown(["rows", "labels", "correlation"], cells)]
    if result["passes"]:
        cells = [
            [str(row["passes"]), *(f"{100 * point['value']:.1f}" for point in row["points"])]
            for row in result["passes"]
        ]
        headings = ["passes over CoLA", *(f"{fraction:.0%}" for fraction in FRACTIONS)]
        parts += ["### matthews ×100 after each pass, by gradient, one-shot", markdown(headings, cells)]
    return "\n\n".join(parts)


def figure(result: dict[str, Any], name: str) -> None:
    """The metric against the heads that are gone."""
    tasks = list(dict.fromkeys(curve["task"] for curve in result["curves"]))
    panels = len(tasks) + bool(result["passes"])
    drawing, axes = plt.subplots(1, panels, figsize=(4.4 * panels, 3.8), layout="constrained", squeeze=False)
    styles = {
        ("original", "gradient", "one-shot"): ("#0072B2", "-", "o"),
        ("original", "gradient", "iterative"): ("#0072B2", "--", "s"),
        ("original", "gradient", "healed"): ("#009E73", "-", "^"),
        ("original", "ablation", "one-shot"): ("#D55E00", "-", "v"),
        ("original", "output_variance", "one-shot"): ("#CC79A7", "-", "D"),
        ("original", "random", "one-shot"): ("#999999", ":", "x"),
        ("cp", "gradient", "one-shot"): ("#E69F00", "-", "P"),
        ("tucker", "gradient", "one-shot"): ("#000000", "-", "*"),
    }
    for axis, task in zip(axes[0], tasks, strict=False):
        mine = [curve for curve in result["curves"] if curve["task"] == task]
        for curve in mine:
            key = (curve["model"], curve["score"], curve["how"])
            if key in styles:
                color, line, mark = styles[key]
                points = [(100 * point["fraction"], 100 * point["value"]) for point in curve["points"]]
                label = f"{key[0]}, {key[1].replace('_', ' ')}, {key[2]}"
                axis.plot(*zip(*points, strict=True), line, color=color, marker=mark, markersize=4, label=label)
        axis.set(title=task, xlabel="heads gone, %", ylabel=f"{mine[0]['metric']} ×100")
    axes[0][0].legend(fontsize=6, loc="lower left")
    if result["passes"]:
        axis = axes[0][-1]
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(result["passes"])))
        for row, color in zip(result["passes"], shades, strict=True):
            points = [(100 * point["fraction"], 100 * point["value"]) for point in row["points"]]
            axis.plot(*zip(*points, strict=True), "-o", color=color, markersize=4, label=f"after {row['passes']}")
        axis.set(title="cola, passes over the data", xlabel="heads gone, %", ylabel="matthews ×100")
        axis.legend(fontsize=6)
    drawing.savefig(RESULTS / f"{name}.png", dpi=200)
    plt.close(drawing)


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--task", action="append", choices=list(QUICK))
    given = parser.parse_args()
    transformers.logging.disable_progress_bar()
    dev_rows, steps = (None, 500) if given.full else (500, 100)
    result_name = "pruning-full" if given.full else "pruning"
    settings = {"score_rows": ROWS, "dev_rows": dev_rows, "heal_steps": steps}
    order = list(QUICK)

    def keep(what: str, *measured: dict[str, Any]) -> None:
        with my_turn(result_name):
            result = finished(result_name) | {"machine": machine(), "settings": settings}
            result[what] += measured
            result["curves"].sort(key=lambda curve: order.index(curve["task"]))
            write(result_name, result, table(result))
            figure(result, result_name)

    tasks = given.task or order
    for name in tasks:
        known = finished(result_name)["curves"]
        done = {(curve["task"], curve["model"], curve["how"], curve["score"]) for curve in known}
        for curve in curves(Bench(name, QUICK[name], 0), dev_rows, steps, done):
            keep("curves", curve)
    if "cola" in tasks:
        bench = Bench("cola", QUICK["cola"], 0)
        if not finished(result_name)["likeness"]:
            keep("likeness", *likeness(bench, dev_rows))
        for row in by_pass(bench, 4, dev_rows, {row["passes"] for row in finished(result_name)["passes"]}):
            keep("passes", row)


def finished(name: str) -> dict[str, Any]:
    """Results so far; read anew every time, because each task may have a process of its own."""
    return {"curves": [], "likeness": [], "passes": []} | kept(name)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
