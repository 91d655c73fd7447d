"""A model as an ONNX graph, by torch's own exporter."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function, eager_mask

from ..errors import UnsupportedArchitectureError, first_line
from ..models.states import eager_attention
from .samples import check_exportable, input_axes, sample


class Graph(nn.Module):
    """Wraps a model so that its output is a tuple of tensors.

    Args:
        model: in evaluation mode, in float32.

    Attributes:
        outputs: names of the tensors, in order.
        inputs: by input, the names of its dynamic axes.

    Raises:
        UnsupportedArchitectureError: if the model is not one forward pass over text or images.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        check_exportable(model)
        self.model = model
        self.eval()
        self.inputs = input_axes(model)
        with torch.no_grad():
            output = model(**self.example(), return_dict=True)
        self.outputs = tuple(name for name, value in output.items() if isinstance(value, Tensor))

    def example(self) -> dict[str, Tensor]:
        """Inputs to trace with: two rows, one of them padded."""
        return sample(self.model, 2, 8, torch.Generator().manual_seed(0))

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The model's tensors for its inputs by name."""
        output = self.model(**inputs, return_dict=True)
        return tuple(output[name] for name in self.outputs)


def write_graph(graph: Graph, file: Path) -> int:
    """Writes a model as an ONNX graph, with the weights in a separate file if they are over 2 GB.

    Attention is traced in its eager form, where a key shared by all heads is a single matrix product.

    Args:
        graph: graph of the model.
        file: file to write.

    Returns:
        The opset version of the graph.

    Raises:
        UnsupportedArchitectureError: if torch cannot trace the model.
    """
    any_size = {name: dict(enumerate(axes)) for name, axes in graph.inputs.items()}
    with eager_attention(graph.model), padding_in_one_row(), _quiet_exporter():
        try:
            program: Any = torch.onnx.export(
                graph,
                kwargs={"inputs": graph.example()},
                dynamo=True,
                dynamic_shapes={"inputs": any_size},
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UnsupportedArchitectureError(
                f"torch could not export {type(graph.model).__name__} to ONNX: {first_line(error.__cause__ or error)}"
            ) from error
    program.save(file)
    return program.model.opset_imports[""]


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences torch's messages about itself and about operators of packages that no model here uses."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
            # Inputs share their axes on purpose.
            warnings.filterwarnings(
                "ignore", message=r"# The axis name: .* shares the same shape", category=UserWarning
            )
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def padding_in_one_row() -> Iterator[None]:
    """Makes transformers' eager masks (B, 1, 1, S) where they hide only padding, which is the same for all queries.

    Otherwise transformers expands them to every query, (B, 1, T, S), and the graph computes that expansion.
    """
    ALL_MASK_ATTENTION_FUNCTIONS["eager"] = _mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["eager"]


def _mask(
    batch_size: int, q_length: int, kv_length: int, *, mask_function: Callable[..., Any], **options: Any
) -> Tensor:
    rows = 1 if mask_function is bidirectional_mask_function else q_length
    return eager_mask(batch_size, rows, kv_length, mask_function=mask_function, **options)
