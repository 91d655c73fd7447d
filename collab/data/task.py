"""Tasks, and their names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigurationError
from .source import DataSource


@dataclass(frozen=True)
class Task:
    """A task: the predictions of a model, and how they are measured.

    Attributes:
        kind: ``classification``, ``regression``, ``token-classification``, ``masked-lm``, ``translation`` (a text for a
            text, such as a summary, too) or ``similarity``.
        hub_name: name of the task on the Hub.
        head: Auto class of models with a head for it; None for tasks of embeddings.
        metrics: metrics that a checkpoint can be selected by.
        best_by: the one that selects it.
        columns: columns of the text, if the task defines them.
        label_column: column of the labels, if the task defines it.
        train: its training data on the Hub, if it has any.
        held_out: its held-out data on the Hub, if it has any.
    """

    kind: str
    hub_name: str
    head: str | None
    metrics: tuple[str, ...]
    best_by: str
    columns: tuple[str, ...] = ()
    label_column: str | None = None
    train: DataSource | None = None
    held_out: DataSource | None = None

    @property
    def auto_class(self) -> Any:
        """The Auto class of models with a head for the task."""
        import transformers  # not at the top: the command line names the tasks without it

        return getattr(transformers, self.head) if self.head else transformers.AutoModel

    @property
    def greater_is_better(self) -> bool:
        """Whether a higher value of `best_by` is better."""
        return self.best_by != "loss"


_KINDS = {
    task.kind: task
    for task in (
        Task(
            "classification",
            "text-classification",
            "AutoModelForSequenceClassification",
            ("accuracy", "f1", "matthews"),
            "accuracy",
        ),
        Task(
            "regression",
            "text-classification",
            "AutoModelForSequenceClassification",
            ("spearman", "pearson"),
            "spearman",
        ),
        Task(
            "token-classification",
            "token-classification",
            "AutoModelForTokenClassification",
            ("f1", "precision", "recall", "accuracy"),
            "f1",
        ),
        Task("masked-lm", "fill-mask", "AutoModelForMaskedLM", ("loss", "accuracy"), "loss"),
        Task("translation", "translation", "AutoModelForSeq2SeqLM", ("loss", "accuracy"), "loss"),
        Task("similarity", "sentence-similarity", None, ("spearman", "pearson"), "spearman"),
    )
}
KINDS = tuple(_KINDS)
TRAINABLE_KINDS = tuple(kind for kind, task in _KINDS.items() if task.head)

_PAIR = ("sentence1", "sentence2")
_GLUE: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "cola": ("classification", ("sentence",), "matthews", "validation"),
    "sst2": ("classification", ("sentence",), "accuracy", "validation"),
    "mrpc": ("classification", _PAIR, "f1", "validation"),
    "stsb": ("regression", _PAIR, "spearman", "validation"),
    "qqp": ("classification", ("question1", "question2"), "f1", "validation"),
    "mnli": ("classification", ("premise", "hypothesis"), "accuracy", "validation_matched"),
    "qnli": ("classification", ("question", "sentence"), "accuracy", "validation"),
    "rte": ("classification", _PAIR, "accuracy", "validation"),
    "wnli": ("classification", _PAIR, "accuracy", "validation"),
}
GLUE = tuple(f"glue/{name}" for name in _GLUE)


def task_named(name: str, metric: str | None = None) -> Task:
    """A task by its kind, or by its name in GLUE, which also sets its data and metric.

    Args:
        name: such as ``classification`` or ``glue/sst2``.
        metric: use this metric instead of the task's usual one.

    Raises:
        ConfigurationError: if there is no such task, or it has no such metric.
    """
    if name in _KINDS:
        task = _KINDS[name]
    elif name in GLUE:
        subset = name.removeprefix("glue/")
        kind, columns, best_by, split = _GLUE[subset]
        sources = [DataSource("nyu-mll/glue", columns, subset, name_of_split) for name_of_split in ("train", split)]
        task = replace(
            _KINDS[kind],
            best_by=best_by,
            columns=columns,
            label_column="label",
            train=sources[0],
            held_out=sources[1],
        )
    else:
        raise ConfigurationError(f"Unknown task {name!r}; choose one of {', '.join((*KINDS, *GLUE))}.")
    if metric is None:
        return task
    if metric not in task.metrics:
        raise ConfigurationError(f"{task.kind} has no metric {metric!r}; choose one of {', '.join(task.metrics)}.")
    return replace(task, best_by=metric)


def task_of(config: dict[str, Any], embedder: bool) -> Task:
    """The task of a model, by its config.

    Args:
        config: contents of config.json.
        embedder: whether it is a sentence-transformers model.

    Raises:
        ConfigurationError: if the config does not tell the task.
    """
    architecture = (config.get("architectures") or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        labels = len(config.get("id2label") or {0: "", 1: ""})
        return _KINDS["regression" if labels == 1 else "classification"]
    for ending, kind in (("ForTokenClassification", "token-classification"), ("ForMaskedLM", "masked-lm")):
        if architecture.endswith(ending):
            return _KINDS[kind]
    if embedder:
        return _KINDS["similarity"]
    if architecture.removeprefix("Collab") in _translators():
        return _KINDS["translation"]
    raise ConfigurationError(
        f"A {architecture or 'model without a head'} does not tell its task. Name it with --task (task=): "
        f"{', '.join(KINDS)}."
    )


def _translators() -> set[str]:
    """Names of transformers' classes that write a text for a text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return {*MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()}
