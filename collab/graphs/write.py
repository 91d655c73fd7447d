"""A model's graph in a format and precision."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from ..data.features import Batch
from ..io.read import GRAPH_OF
from ..modeling.collab_model import CollaborativeMixin
from ..models.families import native_type
from .int8 import quantize
from .openvino import write_openvino
from .options import INT8_FILE, ONNX_FILE, OPENVINO_FILE, ExportOptions
from .runtime import graph_parts
from .trace import Graph, write_graph


def write_graphs(
    graph: Graph, folder: Path, options: ExportOptions, batches: Sequence[Batch]
) -> tuple[list[Path], int]:
    """Writes a model's graph, and in int8 for onnxruntime a second one.

    Args:
        graph: the graph.
        folder: folder to write to.
        options: format and precision.
        batches: rows without padding to measure the ranges of activations on, in int8 for OpenVINO.

    Returns:
        The files, that of the precision last, and the version of the ONNX operators.

    Raises:
        UnsupportedArchitectureError: if the model cannot be traced.
    """
    plain, small, openvino = (folder / name for name in (ONNX_FILE, INT8_FILE, OPENVINO_FILE))
    opset = write_graph(graph, plain)
    if options.format == "openvino":
        write_openvino(plain, openvino, options.precision, batches)
        for path in graph_parts(plain):
            path.unlink()
        return [openvino], opset
    if options.precision == "int8":
        quantize(plain, small)
        return [plain, small], opset
    return [plain], opset


def write_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes the config of a graph's model as that of its native class, which every library knows.

    Tokenizers are found by the model type, and would warn of one that transformers does not have, or ask to trust
    remote code. What a converted model's config has besides is kept, with its own type in `GRAPH_OF`, so that
    `collab.io.read.read_config` gives it again.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "auto_map"):
        del config.auto_map
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if not isinstance(model, CollaborativeMixin):
        return
    path = folder / CONFIG_NAME
    content = json.loads(path.read_text(encoding="utf-8"))
    own = {name: content[name] for name in ("model_type", "architectures")}
    native = {"model_type": native_type(content["model_type"]), "architectures": [model.native_class().__name__]}
    content |= native | {GRAPH_OF: own}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
