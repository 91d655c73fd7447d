"""A model as an ONNX graph, by torch's own exporter."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function, eager_mask

from ..errors import UnsupportedArchitectureError, first_line
from ..models.states import eager_attention
from .options import GraphPart
from .samples import check_one_pass, input_axes, sample, samples


class Graph(nn.Module):
    """Wraps a model so that its output is a tuple of tensors.

    Args:
        model: in evaluation mode, in float32.

    Class attributes:
        part: what of the model it is.

    Attributes:
        outputs: names of the tensors, in order.
        inputs: by input, the names of its axes; None for an axis of one size.
        main: the input whose shape reports give.

    Raises:
        UnsupportedArchitectureError: if the model is not one forward pass over text or images.
    """

    part: ClassVar[GraphPart] = "model"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.main = model.main_input_name
        self.eval()
        self.check()
        self.inputs = self.axes()
        with torch.no_grad():
            self.outputs = tuple(self.run(self.example()))

    def check(self) -> None:
        """Raises an UnsupportedArchitectureError for a model that is no such graph."""
        check_one_pass(self.model)

    def axes(self) -> Mapping[str, tuple[str | None, ...]]:
        """See the attribute `inputs`."""
        return input_axes(self.model)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's tensors by name, for its inputs by name."""
        output = self.model(**inputs, return_dict=True)
        return {name: value for name, value in output.items() if isinstance(value, Tensor)}

    def example(self) -> dict[str, Tensor]:
        """Inputs to trace with: two rows, one of them padded."""
        return sample(self.model, 2, 8, torch.Generator().manual_seed(0))

    def samples(self) -> list[dict[str, Tensor]]:
        """Inputs to check it on."""
        return samples(self.model)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The tensors that `outputs` names."""
        output = self.run(inputs)
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
    any_size = {
        name: {number: axis for number, axis in enumerate(axes) if axis is not None}
        for name, axes in graph.inputs.items()
    }
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
