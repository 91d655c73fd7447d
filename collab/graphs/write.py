"""A model's graph in a format and precision."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from ..data.batches import Batch
from ..io.read import GRAPH_OF
from ..modeling.collab_model import CollaborativeMixin
from ..models.families import native_type
from .int8 import quantize
from .openvino import write_openvino
from .options import ExportOptions, graph_file
from .samples import Granted, feed_of
from .trace import Graph, write_graph


class Written(NamedTuple):
    """A graph that was written.

    Attributes:
        graph: what it is of.
        file: its file.
        exact: whether it is in float32.
        plain: the ONNX graph in float32 that it was made from, or is.
    """

    graph: Graph
    file: Path
    exact: bool
    plain: Path


def write_graphs(
    graphs: Sequence[Graph], folder: Path, scratch: Path, options: ExportOptions, batches: Sequence[Batch] | None
) -> tuple[list[Written], int]:
    """Writes a model's graphs, and in int8 for onnxruntime a second one of each.

    Args:
        graphs: the graphs.
        folder: folder to write to.
        scratch: folder for ONNX graphs that only others are made from.
        options: format and precision.
        batches: rows without padding to measure the ranges of activations on, in int8 for OpenVINO; None for int8 of
            the weights alone, as of a model that writes text.

    Returns:
        The files, those of the precision last, and the version of the ONNX operators.

    Raises:
        UnsupportedArchitectureError: if the model cannot be traced.
    """
    exact: list[Written] = []
    low: list[Written] = []
    opset = 0
    for graph in graphs:
        plain = (folder if options.format == "onnx" else scratch) / graph_file(graph.part, "onnx")
        opset = write_graph(graph, plain)
        if options.format == "openvino":
            file = folder / graph_file(graph.part, "openvino")
            granted = Granted(graph.model)
            feeds = None if batches is None else [feed_of(batch, graph.inputs, granted) for batch in batches]
            write_openvino(plain, file, options.precision, feeds)
            exact.append(Written(graph, file, options.precision == "float32", plain))
            continue
        exact.append(Written(graph, plain, True, plain))
        if options.precision == "int8":
            small = folder / graph_file(graph.part, "onnx", int8=True)
            quantize(plain, small)
            low.append(Written(graph, small, False, plain))
    return exact + low, opset


def write_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes how a graph's model generates, and its config as that of its native class, which every library knows.

    Tokenizers are found by the model type, and would warn of one that transformers does not have, or ask to trust
    remote code. What a converted model's config has besides is kept, with its own type in `GRAPH_OF`, so that
    `collab.io.read.read_config` gives it again.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "auto_map"):
        del config.auto_map
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    generation: Any = getattr(model, "generation_config", None)
    if model.can_generate() and generation is not None:
        generation.save_pretrained(folder)
    if not isinstance(model, CollaborativeMixin):
        return
    path = folder / CONFIG_NAME
    content = json.loads(path.read_text(encoding="utf-8"))
    own = {name: content[name] for name in ("model_type", "architectures")}
    native = {"model_type": native_type(content["model_type"]), "architectures": [model.native_class().__name__]}
    content |= native | {GRAPH_OF: own}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
