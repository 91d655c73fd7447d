"""The approximation problems of a model's attention layers, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..modeling.collab_attention import CollaborativeAttention
from ..models.families import require_family
from ..models.layers import AttentionLayer, native_layers
from .disentangled import DisentangledProblem
from .layer import LayerProblem, factors_of
from .moments import LayerMoments
from .rotary import rotary_problem


class LayerProblems(Mapping[str, LayerProblem]):
    """The problem of each attention layer, by module name, in the order of the model.

    Each is created on access, so that only one layer's float64 copies are in memory.

    Args:
        model: a native model.
        moments: moments of each layer's inputs; None to approximate the weights.
        device: device to solve on.

    Raises:
        CalibrationError: if the moments are of another model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        moments: Mapping[str, LayerMoments] | None,
        device: torch.device,
    ) -> None:
        self._layers = native_layers(model)
        self._moments = moments
        self._device = device
        if self._moments is not None and set(self._moments) != set(self._layers):
            raise CalibrationError("The calibration is of another model: its layers are not those of this one.")

    @property
    def full_ranks(self) -> list[int]:
        """K of each layer."""
        return [layer.full_rank for layer in self._layers.values()]

    def __getitem__(self, name: str) -> LayerProblem:
        layer = self._layers[name]
        query, key = layer.projection("query"), layer.projection("key")
        moments = None if self._moments is None else self._moments[name]
        if moments is not None:
            _check_widths(name, layer, moments)
        with torch.no_grad():
            if layer.rotary:
                return rotary_problem(query, key, layer.total, self._device, moments)
            projections = query.weight, query.bias, key.weight, key.bias
            problem = LayerProblem.of(*projections, layer.total, self._device, moments)
            if layer.positions is None:
                return problem
            return DisentangledProblem(
                problem.tensor, problem.query_bias, problem.moments, problem.key_bias, terms=layer.positions
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def _check_widths(name: str, layer: AttentionLayer, moments: LayerMoments) -> None:
    """Raises a CalibrationError for moments of a layer of other widths or heads."""
    query, key = layer.projection("query"), layer.projection("key")
    biased = layer.rotary and (query.bias is not None or key.bias is not None)  # one more input, which is always 1
    own = (query.in_features + biased, key.in_features + biased, layer.total)
    if (len(moments.query_covariance), len(moments.key_covariance), len(moments.head_weight)) != own:
        raise CalibrationError(
            f"The calibration is of another model: its layer {name} has other widths or heads than this one's. "
            "Calibrate this model."
        )


def score_errors(
    original: PreTrainedModel, converted: PreTrainedModel, moments: Mapping[str, LayerMoments]
) -> dict[str, float]:
    """Relative errors of a converted model's scores, layer by layer, for example on held-out inputs.

    Args:
        original: the native model.
        converted: its conversion.
        moments: moments of the original's inputs, as in `collab.calibrate(...).moments`.

    Returns:
        The errors by module name; see `LayerConversion.score_error`.
    """
    require_family(original.config)
    errors = {}
    for name, problem in LayerProblems(original, None, original.device).items():
        module = converted.get_submodule(name)
        assert isinstance(module, CollaborativeAttention)
        with torch.no_grad():
            errors[name] = problem.score_error(factors_of(module), moments[name])
    return errors
