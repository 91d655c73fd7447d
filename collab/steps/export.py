"""Models written in another way: as a native model, or as a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .agreement import agreement_sentence, sources_text
from .step import Count, DataSummary, Json, Step, table


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
            f"Written as a native `{self.native_class}`. On random inputs its outputs differ from the former model's "
            f"by {self.output_difference:.1e} at most (their largest entry is {self.output_scale:.3g}).\n\n"
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
        format: ``onnx`` or ``openvino``.
        precision: of the arithmetic; see `ExportOptions`.
        opset: version of the ONNX operators that the graph was traced to.
        inputs: names of the inputs, without the cache.
        outputs: names of the outputs, without the cache.
        verification: by file, the difference from PyTorch on random inputs (`collab.graphs.check.Comparison`).
        calibration: the rows of `agreement`, which also gave the ranges of activations; None without.
        agreement: of the graph in that precision with the model in memory, on held-out rows.
        agreement_by_source: the same by source of the rows, if there are several.
        bytes: size of every graph, by file.
        model: name of the model.
        random: weights that the checkpoint lacks, initialized at random.
        versions: of Python and the packages.
        cache: names of the cache's tensors, of a model that writes text: ``past_key_values.NAME`` goes into the
            decoder's graph, and ``present.NAME`` comes out of it or, of cross-attention, of the encoder's.
    """

    kind: ClassVar[str] = "export"
    title: ClassVar[str] = "Graph"

    format: str
    precision: str
    opset: int
    inputs: list[str]
    outputs: list[str]
    verification: dict[str, Json]
    calibration: DataSummary | None
    agreement: dict[str, float] | None
    agreement_by_source: dict[str, dict[str, float]]
    bytes: dict[str, int]
    model: str
    random: list[str]
    versions: dict[str, str]
    cache: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Size of the graphs, and how far they are from PyTorch."""
        measures = ("largest_difference", "mean_difference", "lowest_cosine")
        rows = []
        for file, check in self.verification.items():
            low = self.precision != "float32" and (self.format != "onnx" or file.endswith("_quantized.onnx"))
            forms = (".4f", ".4f", ".4f") if low else (".1e", ".1e", ".6f")
            values = [f"{check[name]:{form}}" for name, form in zip(measures, forms, strict=True)]
            rows.append([f"`{file}`", f"{self.bytes[file] / 1e6:.2f} MB", *values])
        shapes = ", ".join("×".join(map(str, shape)) for shape in next(iter(self.verification.values()))["shapes"])
        runtime = "OpenVINO" if self.format == "openvino" else "onnxruntime"
        version = self.versions[runtime.lower()]
        text = (
            f"For {runtime}, in {self.precision}. Compared with PyTorch in {runtime} {version} on random inputs of "
            f"shapes {shapes}, padded and not; the differences are over all outputs without padding:\n\n"
            + table(["", "size", "largest difference", "mean difference", "cosine"], rows)
        )
        if self.agreement is None or self.calibration is None:
            return text
        sentence = agreement_sentence(self.agreement, f"The {self.precision} graph", "the model in PyTorch")
        return "\n\n".join(filter(None, [text, sentence, sources_text(self.agreement_by_source)]))
