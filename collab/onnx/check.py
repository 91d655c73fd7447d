"""Does a graph compute what the model computes?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import VerificationError
from .graph import Graph
from .samples import samples

TOLERANCE = 1e-4
"""Largest difference from PyTorch, relative to the largest entry of the output where that is above one."""

Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Comparison:
    """A graph's outputs beside PyTorch's.

    Attributes:
        shapes: of the inputs that were tried.
        largest: largest absolute difference.
        mean: mean absolute difference.
        relative: largest difference divided by the largest entry of its output, where that is above one.
        where: the output and shape with it.
        cosine: lowest mean cosine, over the last axis, of an output.
    """

    shapes: list[list[int]]
    largest: float
    mean: float
    relative: float
    where: str
    cosine: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "shapes": self.shapes,
            "largest_difference": self.largest,
            "mean_difference": self.mean,
            "lowest_cosine": self.cosine,
        }


def session(file: Path) -> Any:
    """An onnxruntime session on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads are in others' way
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def check_graph(graph: Graph, file: Path) -> Comparison:
    """Compares a graph with its model on several batch sizes and lengths, with padding.

    Args:
        graph: of the model.
        file: that it was written to.

    Raises:
        VerificationError: if an output differs by more than rounding.
    """
    found = compare(graph, file)
    if not found.relative <= TOLERANCE:
        raise VerificationError(
            f"The ONNX graph differs from PyTorch by {found.largest:.2e} in {found.where}; {TOLERANCE:.0e} is allowed."
        )
    return found


def compare(graph: Graph, file: Path) -> Comparison:
    """Runs a graph and its model on the same inputs. Tokens that are padding are not compared."""
    runner = session(file)
    taken = {one.name for one in runner.get_inputs()}
    shapes: list[list[int]] = []
    differences: list[tuple[float, float, str]] = []
    total, count = 0.0, 0
    cosines: dict[str, list[float]] = {}
    for inputs in samples(graph.model):
        shape = list(inputs[graph.model.main_input_name].shape)
        shapes.append(shape)
        with torch.no_grad():
            expected = [value.numpy() for value in graph(inputs)]
        actual = runner.run(list(graph.outputs), {name: one.numpy() for name, one in inputs.items() if name in taken})
        mask = inputs["attention_mask"].numpy().astype(bool) if "attention_mask" in inputs else None
        for name, one, other in zip(graph.outputs, actual, expected, strict=True):
            if one.shape != other.shape:
                raise VerificationError(f"{name} of the ONNX graph has shape {one.shape}, not {other.shape}.")
            if mask is not None and one.shape[: mask.ndim] == mask.shape:
                one, other = one[mask], other[mask]
            difference = np.abs(one - other)
            largest = float(difference.max())
            differences.append((largest / max(1.0, float(np.abs(other).max())), largest, f"{name} for inputs {shape}"))
            total, count = total + float(difference.sum()), count + difference.size
            cosines.setdefault(name, []).append(_cosine(one, other))
    relative, _, where = max(differences, key=lambda one: (np.isnan(one[0]), one[0]))
    return Comparison(
        shapes=shapes,
        largest=float(np.max([one[1] for one in differences])),
        mean=total / count,
        relative=relative,
        where=where,
        cosine=min(float(np.mean(found)) for found in cosines.values()),
    )


def _cosine(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Mean cosine of two arrays' rows, the last axis; 1 where both are zero."""
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(axis=-1)
    return float(np.where(norms > 0, products / np.where(norms > 0, norms, 1), 1.0).mean())
