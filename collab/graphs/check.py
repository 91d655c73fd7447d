"""Checks that a graph computes what its model computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import VerificationError
from .runtime import open_graph
from .trace import Graph

TOLERANCE = 1e-4
"""Largest difference allowed from PyTorch, relative to the largest entry of the output if that is above one."""


@dataclass(frozen=True)
class Comparison:
    """Differences between a graph's outputs and PyTorch's.

    Attributes:
        shapes: shapes of the inputs.
        largest: largest absolute difference.
        mean: mean absolute difference.
        relative: largest difference relative to the largest entry of its output, if that is above one.
        where: output and shape with the largest relative difference.
        cosine: lowest mean cosine over the last axis, among the outputs.
    """

    shapes: list[list[int]]
    largest: float
    mean: float
    relative: float
    where: str
    cosine: float

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "shapes": self.shapes,
            "largest_difference": self.largest,
            "mean_difference": self.mean,
            "lowest_cosine": self.cosine,
        }


def check_graph(graph: Graph, file: Path) -> Comparison:
    """Compares a graph with its model on several batch sizes and lengths, with padding.

    Args:
        graph: graph of the model.
        file: file that it was written to.

    Returns:
        The differences.

    Raises:
        VerificationError: if an output differs by more than rounding.
    """
    comparison = compare_graph(graph, file)
    if not comparison.relative <= TOLERANCE:
        raise VerificationError(
            f"The graph differs from PyTorch by {comparison.largest:.2e} in {comparison.where}; {TOLERANCE:.0e} "
            "is allowed."
        )
    return comparison


def compare_graph(graph: Graph, file: Path) -> Comparison:
    """Runs a graph and its model on the same inputs; padding is not compared."""
    session = open_graph(file)
    shapes: list[list[int]] = []
    differences: list[tuple[float, float, str]] = []
    total, count = 0.0, 0
    cosines: dict[str, list[float]] = {}
    for inputs in graph.samples():
        shape = list(inputs[graph.main].shape)
        shapes.append(shape)
        with torch.no_grad():
            expected = [value.numpy() for value in graph(inputs)]
        feed = {name: value.numpy() for name, value in inputs.items() if name in session.inputs}
        results = session.run(feed)
        actual = [results[name] for name in graph.outputs]
        mask = inputs["attention_mask"].numpy().astype(bool) if "attention_mask" in inputs else None
        for name, output, reference in zip(graph.outputs, actual, expected, strict=True):
            if output.shape != reference.shape:
                raise VerificationError(f"{name} of the graph has shape {output.shape}, not {reference.shape}.")
            if mask is not None and output.shape[: mask.ndim] == mask.shape:
                output, reference = output[mask], reference[mask]
            difference = np.abs(output - reference)
            largest = float(difference.max())
            relative = largest / max(1.0, float(np.abs(reference).max()))
            differences.append((relative, largest, f"{name} for inputs {shape}"))
            total, count = total + float(difference.sum()), count + difference.size
            cosines.setdefault(name, []).append(_cosine(output, reference))
    relative, _, where = max(differences, key=lambda entry: (np.isnan(entry[0]), entry[0]))
    return Comparison(
        shapes=shapes,
        largest=float(np.max([largest for _, largest, _ in differences])),
        mean=total / count,
        relative=relative,
        where=where,
        cosine=min(float(np.mean(values)) for values in cosines.values()),
    )


def _cosine(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Mean cosine over the last axis; 1 where a vector is zero."""
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(axis=-1)
    return float(np.where(norms > 0, products / np.where(norms > 0, norms, 1), 1.0).mean())
