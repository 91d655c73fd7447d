"""A step in the history of a model: its numbers, its entry in the report, and one rendering for card and terminal.

Nothing in this package imports torch or transformers.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, TypedDict

Json = dict[str, Any]
"""A JSON object: an entry of a report."""


class DataSummary(TypedDict, total=False):
    """The data that a step used.

    Attributes:
        source: name of a file or data set; ``synthetic``, ``rows``, ``batches`` or ``callable`` for others.
        columns: columns of a source.
        subset: configuration of a data set on the Hub.
        split: its split.
        rows: number of rows.
        held_out: number of those that were held out.
        task: kind of the task of the labels, if there are any.
        tokens: tokens of a calibration, of those that the encoder reads if there is one.
        decoder_tokens: tokens that the decoder reads.
        masked: part of the tokens that were masked, for a masked language model.
        in_order: whether layers were calibrated in order.
        weight: weight of a source of several, if it is not 1.
        sources: the sources, if there are several.
    """

    source: str
    columns: list[str]
    subset: str | None
    split: str
    rows: int
    held_out: int
    task: str
    tokens: int
    decoder_tokens: int
    masked: float
    in_order: bool
    weight: float
    sources: list[DataSummary]


class Step(ABC):
    """One step of a model's history, such as healing. Subclasses are dataclasses, whose fields are the entry's.

    Attributes:
        kind: name of the kind of step, ``step`` in the entry of the report.
        title: heading of the section in the card.
    """

    kind: ClassVar[str]
    title: ClassVar[str]

    @property
    def adjective(self) -> str:
        """Says in the title of a card what the model is now; empty if the step makes no other kind of model of it."""
        return ""

    def to_dict(self) -> Json:
        """The step as an entry of the report."""
        return {"step": self.kind, **plain(vars(self))}

    @abstractmethod
    def summary(self) -> str:
        """The outcome in Markdown: a few lines, which a command prints at its end."""

    def details(self) -> str:
        """Tables and notes in Markdown, which follow the summary in the card, and on the terminal on request."""
        return ""

    def section(self) -> str:
        """The section of the card, without its heading."""
        return "\n\n".join(filter(None, (self.summary(), self.details())))

    def model_index(self) -> tuple[Metric, ...]:
        """Metrics for the card's model-index."""
        return ()

    def counts(self) -> Parameters | None:
        """Parameters before and after, if the step changes their number."""
        return None


class Founding(Step):
    """A step that makes a collaborative model of an original, so that report and card begin with it.

    Attributes:
        settings: the settings.
        notes: notes for the user.
        versions: of Python and the packages.
    """

    settings: Json
    notes: tuple[str, ...]
    versions: dict[str, str]

    @abstractmethod
    def head(self) -> Json:
        """The entries at the top of the report."""

    @abstractmethod
    def introduction(self, original: str) -> str:
        """The first paragraph of the card: what the model is, made from the original of this name."""

    @property
    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """Tags of the card that say what the model is."""


PAPER = "Cordonnier, Loukas, Jaggi 2020, [arXiv 2006.16362](https://arxiv.org/abs/2006.16362)"


@dataclass(frozen=True)
class Metric:
    """A metric for the card's model-index.

    Attributes:
        task: task type on the Hub, such as ``text-classification``.
        dataset: data set that it was measured on.
        metric: name of the metric.
        value: its value.
    """

    task: str
    dataset: str
    metric: str
    value: float


def measured(task: str, dataset: str, metrics: Mapping[str, Mapping[str, float]]) -> tuple[Metric, ...]:
    """Metrics for the model-index, of measurements that each have a ``value``."""
    return tuple(Metric(task, dataset, name, result["value"]) for name, result in metrics.items())


@dataclass(frozen=True)
class Count:
    """A number before and after a change: of parameters, tokens or FLOPs."""

    before: int
    after: int

    @property
    def ratio(self) -> float:
        """after / before."""
        return self.after / self.before

    def to_dict(self) -> Json:
        """``before``, ``after`` and ``ratio``."""
        return {"before": self.before, "after": self.after, "ratio": round(self.ratio, 6)}

    def cells(self) -> list[str]:
        """The cells of a row of `counts_table`."""
        return [f"{self.before:,}", f"{self.after:,}", f"{self.ratio:.3f}"]


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model's parts before and after a change.

    Attributes:
        query_key: of query and key projections with their biases before, and with mixing and content bias after.
        attention: the same with value and output projections.
        model: of the whole model, tied ones counted once.
    """

    query_key: Count
    attention: Count
    model: Count

    @classmethod
    def of(cls, before: Mapping[str, int], after: Mapping[str, int]) -> Parameters:
        """The parameters of two models, as `collab.models.layers.parameters` counts them."""
        return cls(*(Count(before[name], after[name]) for name in ("query_key", "attention", "model")))

    def table(self) -> str:
        """The counts as a table."""
        return counts_table(
            "parameters",
            {
                "query and key, mixing included": self.query_key,
                "attention": self.attention,
                "model": self.model,
            },
        )


def rows_text(data: DataSummary) -> str:
    """Where rows came from, how many there are, and whether some of their tokens were masked."""
    source = "random words" if data["source"] == "synthetic" else f"`{data['source']}`"
    masked = max(part.get("masked", 0.0) for part in (data, *data.get("sources", ())))
    counted = [f"{data['rows']} rows"] if "rows" in data else []
    said = ", ".join([*counted, *([f"{100 * masked:.0f} % of their tokens masked"] if masked else [])])
    return f"{source} ({said})" if said else source


def plain(value: Any) -> Any:
    """A value as JSON values: a dataclass as an object of its fields, or as its own `to_dict` says."""
    if dataclasses.is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else plain(vars(value))
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its first column text and the others numbers."""
    lines = [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def counts_table(of: str, counts: Mapping[str, Count]) -> str:
    """A table of numbers before and after."""
    return table([of, "before", "after", "after / before"], [[name, *count.cells()] for name, count in counts.items()])


def short(value: float) -> str:
    """A number with four decimals; below a hundredth with two digits."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"


def display_names(names: Sequence[str]) -> list[str]:
    """Names of models for a table: the last part of each, where these differ, and otherwise the whole."""
    last = [name.rstrip("/").rpartition("/")[2] or name for name in names]
    return last if len(set(last)) == len(last) else list(names)


def shortened(names: Sequence[str]) -> tuple[str, list[str]]:
    """The common part of module names, with a star for the rest, and the rest of each."""
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts))
    start = next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)
    end = next((i for i in range(shortest - start) if len({part[-1 - i] for part in parts}) > 1), shortest - start)
    rest = [".".join(part[start : len(part) - end]) for part in parts]
    if not all(rest):
        return names[0], [name.rpartition(".")[2] for name in names]
    return ".".join([*parts[0][:start], "*", *parts[0][len(parts[0]) - end :]]), rest


def installed_versions(*more: str) -> dict[str, str]:
    """Versions of Python and of the packages that a result may depend on.

    Args:
        *more: further packages.
    """
    packages = ("collab", "torch", "transformers", "tensorly", "safetensors", *more)
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


@functools.cache  # a package's metadata takes as long to read as a small layer to solve
def _version(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
