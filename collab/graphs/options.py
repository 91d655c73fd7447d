"""Settings of an export. Does not import torch, so that the command line can show the defaults at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConfigurationError

GraphFormat = Literal["onnx", "openvino"]
GraphPrecision = Literal["float32", "bfloat16", "int8"]
Runtime = Literal["torch", "onnxruntime", "openvino"]

FORMATS: tuple[GraphFormat, ...] = get_args(GraphFormat)
PRECISIONS: tuple[GraphPrecision, ...] = get_args(GraphPrecision)
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)

GraphPart = Literal["model", "encoder", "decoder"]
"""What of a model a graph holds: all of it, or its encoder, or its decoder."""

_NAMES: dict[GraphPart, str] = {"model": "model", "encoder": "encoder_model", "decoder": "decoder_with_past_model"}


def graph_file(part: GraphPart, form: GraphFormat, int8: bool = False) -> str:
    """Name of the file of a graph, as optimum names it; only ONNX names its graphs in int8 otherwise."""
    if form == "openvino":
        return f"openvino_{_NAMES[part]}.xml"
    return f"{_NAMES[part]}{'_quantized' if int8 else ''}.onnx"


_KINDS: tuple[tuple[GraphFormat, bool], ...] = (("openvino", False), ("onnx", True), ("onnx", False))
_FIRST: tuple[GraphPart, ...] = ("model", "decoder")

ONNX_FILE = graph_file("model", "onnx")
INT8_FILE = graph_file("model", "onnx", int8=True)
OPENVINO_FILE = graph_file("model", "openvino")

GRAPH_FILES: dict[str, Runtime] = {
    graph_file(part, form, int8): "openvino" if form == "openvino" else "onnxruntime"
    for form, int8 in _KINDS
    for part in _FIRST
}
"""Files of graphs in a folder, with what runs them; the first that is there is the folder's graph, in int8 if it was
exported so. Beside that of a decoder is its encoder's."""

ENCODERS = {graph_file("decoder", form, int8): graph_file("encoder", form, int8) for form, int8 in _KINDS}
"""The files of encoders, by those of their decoders."""

INT8_FILES = {graph_file(part, "onnx", int8=True) for part in get_args(GraphPart)}
"""Graphs that are in int8 by their names; OpenVINO's say it inside."""


@dataclass(frozen=True)
class ExportOptions:
    """Settings of an export.

    Attributes:
        format: ``onnx`` for onnxruntime, ``openvino`` for OpenVINO.
        precision: of the arithmetic. ``int8`` quantizes weights and activations: in ONNX a second graph beside the
            one in float32, whose activations are quantized while it runs; for OpenVINO a graph whose activations have
            ranges measured on calibration rows. ``bfloat16`` is for OpenVINO alone.

    Raises:
        ConfigurationError: if a value is unknown, or the format has no such precision.
    """

    format: GraphFormat = "onnx"
    precision: GraphPrecision = "float32"

    def __post_init__(self) -> None:
        for name, value, known in (("format", self.format, FORMATS), ("precision", self.precision, PRECISIONS)):
            if value not in known:
                raise ConfigurationError(f"Unknown {name} {value!r}; choose one of {', '.join(known)}.")
        if self.format == "onnx" and self.precision == "bfloat16":
            raise ConfigurationError(
                "onnxruntime has no arithmetic in bfloat16 on a CPU. Use precision float32 or int8, or format openvino."
            )

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that the export needs besides collab's own."""
        onnx = ("onnx", "onnxruntime", "onnxscript")
        return onnx if self.format == "onnx" else ("onnx", "onnxscript", "openvino", "nncf")

    @property
    def file(self) -> str:
        """Name of the graph in that precision, of a model that is one graph."""
        return graph_file("model", self.format, self.precision == "int8")

    @property
    def runtime(self) -> Runtime:
        """What runs the graph."""
        return "openvino" if self.format == "openvino" else "onnxruntime"

    @property
    def extra(self) -> str:
        """The extra of collab that has these packages."""
        return self.format
