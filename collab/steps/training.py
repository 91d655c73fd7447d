"""Training: healing without labels, and fine-tuning on a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .agreement import named, sources_text
from .step import DataSummary, Json, Metric, Step, installed_versions, measured, rows_text, short, table


@dataclass(frozen=True)
class Healing(Step):
    """Training without labels to match another model.

    Attributes:
        data: source and number of the rows, with those held out.
        settings: the `HealOptions`, with the learning rate that was used.
        parameters: number of trained parameters.
        before: metrics on the held-out rows: ``loss``, the mean relative squared error of the hidden states, to which
            that of the outputs is added (`collab.training.distillation`), and the agreement with the teacher.
        after: the same afterwards.
        improved: whether the model is better than before; if not, it is unchanged.
        steps: number of steps.
        best_step: the step whose weights were kept; 0 if none improved the model.
        evaluations: the metrics of every evaluation, with its step.
        seconds: wall-clock time.
        teacher: name of the model to match.
        before_by_source: the agreement before, by source of the rows, if there are several.
        after_by_source: the same afterwards.
        versions: of Python and the packages.
    """

    kind: ClassVar[str] = "heal"
    title: ClassVar[str] = "Healing"

    data: DataSummary
    settings: Json
    parameters: int
    before: dict[str, float]
    after: dict[str, float]
    improved: bool
    steps: int
    best_step: int
    evaluations: list[dict[str, float]]
    seconds: float
    teacher: str | None = None
    before_by_source: dict[str, dict[str, float]] = field(default_factory=dict)
    after_by_source: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=installed_versions)

    def summary(self) -> str:
        """Parameters, data, and the metrics before and after."""
        before, after = named(self.before), named(self.after)
        rows = [[name, short(before[name]), short(after[name])] for name in before if name in after]
        teacher = "the original" if self.teacher is None else f"`{self.teacher}`"
        text = (
            f"{self.parameters:,} parameters ({self.settings['trainable']}) were trained for {self.steps} steps, "
            f"without labels, to match the hidden states{' and logits' if 'kl' in self.before else ''} of {teacher} on "
            f"{rows_text(self.data)}. "
        )
        if not self.improved:
            text += "The held-out rows showed no improvement, so the model was left unchanged. "
        text += f"On {self.data['held_out']} held-out rows, against {teacher}:\n\n"
        text += table(["", "before", "after"], rows)
        return "\n\n".join(filter(None, [text, sources_text(self.after_by_source, self.before_by_source)]))


@dataclass(frozen=True)
class Finetuning(Step):
    """Training on the labels of a task.

    Attributes:
        task: kind of the task.
        hub_name: its name on the Hub.
        data: sources and numbers of the rows.
        settings: the `FinetuneOptions`.
        labels: names of the classes.
        best_by: the metric that selects the best checkpoint.
        before: metrics before the first step.
        metrics: by name, value and bootstrap interval (``low``, ``high``) of the best checkpoint.
        best_step: its step.
        steps: number of steps.
        evaluations: the metrics of every evaluation, with its step.
        seconds: wall-clock time.
        teacher: name of the model to learn from besides the labels; None for none.
        versions: of Python and the packages.
    """

    kind: ClassVar[str] = "finetune"
    title: ClassVar[str] = "Fine-tuning"

    task: str
    hub_name: str
    data: Json
    settings: Json
    labels: list[str]
    best_by: str
    before: dict[str, float]
    metrics: dict[str, dict[str, float]]
    best_step: int
    steps: int
    evaluations: list[dict[str, float]]
    seconds: float
    teacher: str | None = None
    versions: dict[str, str] = field(default_factory=installed_versions)

    def summary(self) -> str:
        """The task, the best checkpoint and its metrics."""
        rows = []
        for name, value in self.metrics.items():
            # A single row has none.
            interval = "none" if value["low"] is None else f"{value['low']:.4f} to {value['high']:.4f}"
            rows.append([name, f"{value['value']:.4f}", interval])
        data = self.data
        masked = f", {100 * data['masked']:.0f} % of their tokens masked" if "masked" in data else ""
        return (
            f"Fine-tuned for {self.task} on `{data['train']}` ({data['rows']} rows{masked}) for {self.steps} steps; "
            f"the checkpoint of step {self.best_step} had the best {self.best_by} on `{data['eval']}` "
            f"({data['eval_rows']} rows):\n\n" + table(["", "value", "95 % interval"], rows)
        )

    def model_index(self) -> tuple[Metric, ...]:
        """See `Step`."""
        return measured(self.hub_name, self.data["eval"], self.metrics)
