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

ONNX_FILE = "model.onnx"
INT8_FILE = "model_quantized.onnx"
OPENVINO_FILE = "openvino_model.xml"

GRAPH_FILES: dict[str, Runtime] = {OPENVINO_FILE: "openvino", ONNX_FILE: "onnxruntime", INT8_FILE: "onnxruntime"}
"""Files of graphs in a folder, with what runs them; the first that is there is the folder's graph."""


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
        """Name of the graph in that precision."""
        if self.format == "openvino":
            return OPENVINO_FILE
        return INT8_FILE if self.precision == "int8" else ONNX_FILE

    @property
    def runtime(self) -> Runtime:
        """What runs the graph."""
        return "openvino" if self.format == "openvino" else "onnxruntime"

    @property
    def extra(self) -> str:
        """The extra of collab that has these packages."""
        return self.format
