"""Models written in another way: as a native model, or as a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .step import Count, Json, Step, table


@dataclass(frozen=True)
class ExpandedLayer:
    """Result of expanding one attention layer.

    Attributes:
        name: module name.
        form: decomposition form of the collaborative layer.
        rank: R of the collaborative layer.
        head_rank: largest rank of a head's context and content together; with rotary positions, the most complex
            dimensions of one frequency that a head compares.
        head_dim: the largest rank of a native head: d, or 1 of each frequency with rotary positions.
        error: relative error of the heads' query-key products, content included.
    """

    name: str
    form: str
    rank: int
    head_rank: int
    head_dim: int
    error: float


@dataclass(frozen=True)
class Expansion(Step):
    """A collaborative model written as a native one.

    Attributes:
        native_class: name of the native class.
        layers: result for each attention layer.
        parameters: parameters of the model before and after.
        output_difference: largest difference between an output and the converted model's, on random inputs.
        output_scale: largest absolute value of those outputs.
        model: name of the converted model; None for a model in memory.
    """

    kind: ClassVar[str] = "expand"
    title: ClassVar[str] = "Expansion"

    native_class: str
    layers: tuple[ExpandedLayer, ...]
    parameters: Count
    output_difference: float
    output_scale: float
    model: str | None = None

    @property
    def error(self) -> float:
        """The largest error of a layer."""
        return max(layer.error for layer in self.layers)

    def to_dict(self) -> Json:
        """The step as an entry of the report."""
        return super().to_dict() | {"error": self.error}

    def summary(self) -> str:
        """The class, and how far its outputs are from the converted model's."""
        return (
            "Collaborative attention was written as the query and key projections of a native "
            f"`{self.native_class}`. On random inputs the outputs differ from the converted model's by "
            f"{self.output_difference:.1e} at most (their largest entry is {self.output_scale:.3g}).\n\n"
            f"{self.parameters.before:,} parameters became {self.parameters.after:,}."
        )

    def details(self) -> str:
        """The error of every layer."""
        rows = [
            [
                f"`{layer.name}`",
                layer.form,
                str(layer.rank),
                f"{layer.head_rank} of {layer.head_dim}",
                f"{layer.error:.2e}",
            ]
            for layer in self.layers
        ]
        return (
            table(["layer", "form", "rank", "dimensions of a head", "relative error"], rows)
            + "\n\nDimensions: the most that a head of the layer compares, out of those of a native head. Error: of "
            "the heads' query-key products with their content, ‖S - Ŝ‖/‖S‖, S_h = [Â_h; c_hᵀ]; below 1e-6 it is "
            "rounding."
        )


@dataclass(frozen=True)
class Export(Step):
    """A model written as a graph.

    Attributes:
        format: ``onnx``.
        opset: version of the operators.
        inputs: names of the inputs.
        outputs: names of the outputs.
        verification: difference from PyTorch (see `GraphDifference`).
        int8: the same of the graph with int8 weights; None without one.
        bytes: size of every graph, by file.
        model: name of the model.
        random: weights that the checkpoint lacks, initialized at random.
        versions: of Python and the packages.
    """

    kind: ClassVar[str] = "export"
    title: ClassVar[str] = "ONNX"

    format: str
    opset: int
    inputs: list[str]
    outputs: list[str]
    verification: Json
    int8: Json | None
    bytes: dict[str, int]
    model: str
    random: list[str]
    versions: dict[str, str]

    def summary(self) -> str:
        """Size of the graphs, and how far they are from PyTorch."""
        shapes = ", ".join("×".join(map(str, shape)) for shape in self.verification["shapes"])
        measures = ("largest_difference", "mean_difference", "lowest_cosine")
        rows = []
        checks = [(self.verification, (".1e", ".1e", ".6f")), (self.int8, (".4f", ".4f", ".4f"))]
        for (file, size), (check, forms) in zip(self.bytes.items(), checks, strict=False):
            values = (
                [] if check is None else [f"{check[name]:{form}}" for name, form in zip(measures, forms, strict=True)]
            )
            rows.append([f"`{file}`", f"{size / 1e6:.2f} MB", *values])
        return (
            f"ONNX opset {self.opset}. Compared with PyTorch in onnxruntime {self.versions['onnxruntime']} on random "
            f"inputs of shapes {shapes}, padded and not; the differences are over all outputs without padding:\n\n"
            + table(["", "size", "largest difference", "mean difference", "cosine"], rows)
        )
