"""Measurements of a model: on a task, and of its speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .agreement import named
from .step import DataSummary, Json, Metric, Step, display_names, installed_versions, measured, rows_text, short, table


@dataclass(frozen=True)
class Evaluation(Step):
    """A model measured on labelled rows, alone or beside another.

    Attributes:
        model: name of the model.
        task: kind of the task.
        hub_name: its name on the Hub.
        data: the rows.
        metrics: by name, value and bootstrap interval (``low``, ``high``; None without).
        seconds: wall-clock time.
        against: comparison with a second model (`collab.evaluation.compare`), with its own ``metrics`` and the
            ``difference`` on the same draws; None without.
        runtime: what ran the model: ``torch``, ``onnxruntime`` or ``openvino``.
        dtype: dtype of its weights; of a graph its precision.
        versions: of Python and the packages.
    """

    kind: ClassVar[str] = "evaluate"
    title: ClassVar[str] = "Evaluation"

    model: str
    task: str
    hub_name: str
    data: DataSummary
    metrics: dict[str, dict[str, float]]
    seconds: float
    against: Json | None = None
    runtime: str = "torch"
    dtype: str = "float32"
    versions: dict[str, str] = field(default_factory=installed_versions)

    def to_dict(self) -> Json:
        """The step as an entry of the report."""
        return {name: value for name, value in super().to_dict().items() if name != "against" or value is not None}

    def summary(self) -> str:
        """The metrics, and how the models agree."""
        rows = [[metric, _interval(result)] for metric, result in self.metrics.items()]
        by = "" if self.runtime == "torch" else f" by {self.runtime}"
        first, *others = display_names([self.model, *([] if self.against is None else [self.against["model"]])])
        headings = ["95 % intervals in brackets", first, *others, *["difference"] * len(others)]
        if self.against is not None:
            for row, metric in zip(rows, self.metrics, strict=True):
                row += [_interval(self.against[which][metric], which == "difference") for which in _COMPARED]
        text = f"{self.task} on {rows_text(self.data)}, in {self.dtype}{by}:\n\n{table(headings, rows)}"
        return text if self.against is None else f"{text}\n\n{_comparison(self.against, first, others[0])}"

    def model_index(self) -> tuple[Metric, ...]:
        """See `Step`."""
        return measured(self.hub_name, self.data["source"], self.metrics)


_COMPARED = ("metrics", "difference")


def _comparison(against: Json, first: str, second: str) -> str:
    """Agreement, size and speed of two models of these names."""
    unit = "tokens" if "tokens_per_second" in against else "rows"  # of models whose tokens differ
    speed, parameters, size = against[f"{unit}_per_second"], against["parameters"], against["bytes"]
    agreement = [f"{name} {short(value)}" for name, value in named(against["agreement"] or {}).items()]
    cosines = [f"{each:.4f}" for each in against["hidden_cosine"]]  # a graph gives none
    agreement += [f"cosine of hidden states by layer {' '.join(cosines)}"] if cosines else []
    rows = [
        ["parameters", *(f"{parameters[which]:,}" for which in _PAIR), _ratio(parameters)],
        ["megabytes", *(f"{size[which] / 1e6:,.1f}" for which in _PAIR), _ratio(size)],
        [
            f"{unit} per second",
            *(f"{speed[which]:,.0f}" for which in _PAIR),
            f"{speed['ratio']:.2f} ({speed['ratio_low']:.2f} to {speed['ratio_high']:.2f})",
        ],
    ]
    text = table(["", first, second, "ratio"], rows)
    return f"{text}\n\n{first} against {second}: {', '.join(agreement)}." if agreement else text


_PAIR = ("model", "against")


def _ratio(pair: Mapping[str, int]) -> str:
    return f"{pair['model'] / pair['against']:.2f}"


def _interval(result: dict[str, float], sign: bool = False) -> str:
    form = "+.4f" if sign else ".4f"
    if result["low"] is None:
        return f"{result['value']:{form}}"
    return f"{result['value']:{form}} ({result['low']:{form}} to {result['high']:{form}})"


@dataclass(frozen=True)
class Speed(Step):
    """The speed of a model beside the one that it was made from, when it was made.

    Attributes:
        ratio: how many times as fast it is: median of the ratios of single rounds.
        low: lower quartile of these ratios.
        high: upper quartile.
        rows: rows of a batch, of random inputs without padding.
        length: tokens of a row; None for inputs of one size.
        device: name of the device.
        threads: number of torch threads.
        dtype: dtype of the weights; of a graph its precision, where the original's is float32.
        runtime: what ran both: ``torch``, ``onnxruntime`` or ``openvino``.
        beside: of a graph, whose graph in float32 it was timed beside: ``original``, or ``model`` for its own.
        rounds: number of rounds; None in reports of earlier versions.
    """

    kind: ClassVar[str] = "speed"
    title: ClassVar[str] = "Speed"

    ratio: float
    low: float
    high: float
    rows: int
    length: int | None
    device: str
    threads: int
    dtype: str
    runtime: str = "torch"
    beside: Literal["original", "model"] = "original"
    rounds: int | None = None

    def summary(self) -> str:
        """The ratio, and what it was measured on."""
        what = f"{self.rows} rows of {self.length} tokens" if self.length is not None else f"{self.rows} inputs"
        before = "before" if self.runtime == "torch" else f"the {self.beside} in float32, both in {self.runtime}"
        rounds = "" if self.rounds is None else f" in the middle half of {self.rounds} rounds"
        return (
            f"{self.ratio:.2f} times as fast as {before} ({self.low:.2f} to {self.high:.2f}{rounds}) on {what}, in "
            f"{self.dtype} on {self.device} with {self.threads} thread{'s' if self.threads > 1 else ''}."
        )
