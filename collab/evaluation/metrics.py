"""Metrics of predictions, with bootstrap intervals.

Predictions are columns with one value per row, from which every metric can be computed on any selection of rows. The
bootstrap resamples rows (Efron and Tibshirani 1993), and two models are compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ExtraError
from .translation import NGRAMS, bleu

try:
    from scipy.stats import pearsonr, spearmanr
except ImportError as error:
    raise ExtraError("Metrics need scipy: pip install 'collab[train]'.") from error

Columns = dict[str, np.ndarray]
"""Predictions and labels, or counts, one per row."""

_Metric = Callable[[Columns], float]


def _correlation(function: Any) -> _Metric:
    def metric(columns: Columns) -> float:
        first, second = columns["predicted"], columns["label"]
        if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
            return 0.0  # a constant has no correlation
        return float(function(first, second).statistic)

    return metric


def _of_confusions(function: Callable[[np.ndarray], float]) -> _Metric:
    """A metric of how often each class was taken for each: a bootstrap calls it thousands of times.

    scikit-learn, to which the tests compare, checks its input anew in every call, which takes longer than the metric.
    """

    def metric(columns: Columns) -> float:
        classes = int(columns["classes"][0])
        pairs = columns["label"] * classes + columns["predicted"]
        return function(np.bincount(pairs, minlength=classes**2).reshape(classes, classes))  # label, predicted

    return metric


def _accuracy(confusions: np.ndarray) -> float:
    return float(confusions.trace() / confusions.sum())


def _f1(confusions: np.ndarray) -> float:
    """F1 of class 1 for two classes, the mean over the classes that occur for more."""
    both = confusions.sum(0) + confusions.sum(1)
    if len(confusions) <= 2:
        return float(2 * confusions[-1, -1] / both[-1]) if both[-1] else 0.0
    occur = both > 0
    return float((2 * confusions.diagonal()[occur] / both[occur]).mean())


def _matthews(confusions: np.ndarray) -> float:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    confusions = confusions.astype(float)  # products of counts do not fit integers
    rows, labels, predicted = confusions.sum(), confusions.sum(1), confusions.sum(0)
    spreads = (rows**2 - labels @ labels) * (rows**2 - predicted @ predicted)
    return float((confusions.trace() * rows - labels @ predicted) / spreads**0.5) if spreads else 0.0


def _ratio(above: Sequence[str], below: Sequence[str]) -> _Metric:
    def metric(columns: Columns) -> float:
        total = sum(columns[name].sum() for name in below)
        return float(sum(columns[name].sum() for name in above) / total) if total else 0.0

    return metric


_CORRELATIONS = {"spearman": _correlation(spearmanr), "pearson": _correlation(pearsonr)}
_OF_TOKENS = {"loss": _ratio(["loss"], ["tokens"]), "accuracy": _ratio(["correct"], ["tokens"])}
_METRICS: dict[str, dict[str, _Metric]] = {
    "classification": {
        "accuracy": _of_confusions(_accuracy),
        "f1": _of_confusions(_f1),
        "matthews": _of_confusions(_matthews),
    },
    "regression": _CORRELATIONS,
    "similarity": _CORRELATIONS,
    "token-classification": {
        "f1": _ratio(["found", "found"], ["entities", "entities_predicted"]),
        "precision": _ratio(["found"], ["entities_predicted"]),
        "recall": _ratio(["found"], ["entities"]),
        "accuracy": _ratio(["correct"], ["tokens"]),
    },
    "masked-lm": _OF_TOKENS,
    "translation": _OF_TOKENS,
}


def measure(kind: str, columns: Columns) -> dict[str, float]:
    """All metrics for a kind of task, by name."""
    return {name: metric(columns) for name, metric in _metrics_of(kind, columns).items()}


def _metrics_of(kind: str, columns: Columns) -> dict[str, _Metric]:
    """The metrics for a kind of task, with BLEU where texts were written."""
    return ({"bleu": lambda columns: bleu(columns[NGRAMS].sum(axis=0))} if NGRAMS in columns else {}) | _METRICS[kind]


def intervals(
    kind: str,
    columns: Columns,
    reference: Columns | None = None,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """All metrics with bootstrap intervals, or the differences between two models on the same rows.

    Args:
        kind: kind of the task.
        columns: predictions of a model.
        reference: predictions of a second model for the same rows, whose metrics are subtracted; None for the metrics
            of the first.
        draws: number of bootstrap samples; 0 for no intervals.
        level: fraction of the draws inside the interval.
        seed: seed of the draws.

    Returns:
        By name: ``value``, ``low`` and ``high``, which are None without draws and for a single row.
    """
    rows = len(next(iter(columns.values())))
    draws = draws if rows > 1 else 0
    generator = np.random.default_rng(seed)
    chosen = [generator.integers(rows, size=rows) for _ in range(draws)]
    tails = [100 * (1 - level) / 2, 100 * (1 + level) / 2]
    results = {}
    for name, metric in _metrics_of(kind, columns).items():

        def value(selected: Any, metric: _Metric = metric) -> float:
            first = metric({key: column[selected] for key, column in columns.items()})
            if reference is None:
                return first
            return first - metric({key: column[selected] for key, column in reference.items()})

        low, high = (
            map(float, np.percentile([value(selected) for selected in chosen], tails)) if draws else (None, None)
        )
        results[name] = {"value": value(slice(None)), "low": low, "high": high}
    return results
