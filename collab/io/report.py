"""The report of a conversion: errors, parameters and times, layer by layer."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Count:
    """Parameters of a part of the model before and after a change."""

    before: int
    after: int

    @property
    def ratio(self) -> float:
        """after / before."""
        return self.after / self.before

    def to_dict(self) -> dict[str, Any]:
        """``before``, ``after`` and ``ratio``."""
        return {"before": self.before, "after": self.after, "ratio": round(self.ratio, 6)}


@dataclass(frozen=True)
class LayerReport:
    """The report of one attention layer.

    Attributes:
        name: module name in the original model.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R, the number of shared query/key dimensions.
        full_rank: K, the number of query/key dimensions before.
        error: relative error ‖𝒯 - 𝒯̂‖/‖𝒯‖ of the heads' query-key products, the weights.
        score_error: relative error of the scores on calibration inputs, each weighted by its effect on the model's
            output; None without calibration.
        held_out_error: the same on the calibration rows that were held out.
        output_error_before: relative squared error of the attention output on these rows, as solved; None without
            refinement (`collab.refine`).
        output_error_after: the same of the layer as it is now. The other errors are of the layer as it is now as well.
        sweeps: sweeps of the solver, which like the next two is of the solve, before refinement.
        converged: whether the error had stopped falling before the sweeps ran out.
        degeneracy: Σ_r ‖a_r ∘ m_r ∘ b_r‖²/‖𝒯‖²; far above 1 means components that cancel.
        seconds: wall-clock time of the solve.
        query_key: parameters of query and key projections, with their biases before and M or cores and content bias
            after.
    """

    name: str
    form: str
    rank: int
    full_rank: int
    error: float
    score_error: float | None
    held_out_error: float | None
    sweeps: int
    converged: bool
    degeneracy: float
    seconds: float
    query_key: Count
    output_error_before: float | None = None
    output_error_after: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The layer as JSON values."""
        return asdict(self) | {"query_key": self.query_key.to_dict()}


@dataclass(frozen=True)
class ConversionReport:
    """The report of a conversion.

    Attributes:
        layers: one report for each attention layer, in the order of the model.
        query_key: parameters of all query and key projections (see `LayerReport.query_key`).
        attention: the same with value and output projections.
        model: all parameters, tied ones once.
        settings: the `ConversionConfig`.
        choice: how form and ranks were chosen, if a budget was given.
        calibration: what the conversion was calibrated on; None without calibration.
        agreement: of the converted model with the original on held-out rows (`collab.evaluation.compare`).
        comparison: for each layer, the rank and predicted error of every form with as many parameters, not refined.
        seconds: wall-clock time of the whole conversion.
        versions: of collab, torch, transformers, tensorly, Python.
        source: where the model was loaded from; None for a model in memory.
        revision: commit on the Hub; None for a model from elsewhere.
        command: the command line; None if converted from Python.
        verification: result of reloading the exported model; None before it is exported.
        keep_tokens: tokens and parameters before and after others were left out of the vocabulary; None if none were.
            The parameters above are those of the smaller model.
        notes: notes for the user.
        history: steps after the conversion, such as healing.
        original_history: steps that collab had done on the original, such as fine-tuning.
    """

    layers: tuple[LayerReport, ...]
    query_key: Count
    attention: Count
    model: Count
    settings: dict[str, Any]
    seconds: float
    choice: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None
    agreement: dict[str, Any] | None = None
    comparison: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: installed_versions())
    source: str | None = None
    revision: str | None = None
    command: str | None = None
    verification: dict[str, Any] | None = None
    keep_tokens: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    original_history: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "source": self.source,
            "revision": self.revision,
            "command": self.command,
            "settings": self.settings,
            "versions": self.versions,
            "seconds": self.seconds,
            "parameters": {
                "query_key": self.query_key.to_dict(),
                "attention": self.attention.to_dict(),
                "model": self.model.to_dict(),
            },
            "choice": self.choice,
            "calibration": self.calibration,
            "agreement": self.agreement,
            "layers": [layer.to_dict() for layer in self.layers],
            "comparison": self.comparison,
            "verification": self.verification,
            "keep_tokens": self.keep_tokens,
            "notes": list(self.notes),
            "history": list(self.history),
            "original_history": list(self.original_history),
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


@dataclass(frozen=True)
class Conversion:
    """A converted model and its report.

    Attributes:
        model: a model of a collaborative class, on the device and in the dtype of the original.
        report: errors, parameters and settings.
    """

    model: PreTrainedModel
    report: ConversionReport


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result may depend on."""
    versions = {"python": platform.python_version()}
    for package in ("collab", "torch", "transformers", "tensorly", "safetensors"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions
