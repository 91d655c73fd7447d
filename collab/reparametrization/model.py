"""The approximation problems of a model's attention layers, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..modeling.collab_attention import CollaborativeAttention
from ..models.families import Family, require_family
from .disentangled import DisentangledProblem
from .layer import LayerProblem, factors_of
from .moments import LayerMoments
from .rotary import rotary_problem


class LayerProblems(Mapping[str, LayerProblem]):
    """The problem of each attention layer, by module name, in the order of the model.

    Each is created on access, so that only one layer's float64 copies are in memory.

    Args:
        model: a native model.
        family: its family.
        moments: moments of each layer's inputs; None to approximate the weights.
        device: device to solve on.

    Raises:
        CalibrationError: if the moments are of another model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        moments: Mapping[str, LayerMoments] | None,
        device: torch.device,
    ) -> None:
        self._layers = family.attention_layers(model)
        self._family = family
        self._moments = moments
        self._device = device
        if self._moments is not None and set(self._moments) != set(self._layers):
            raise CalibrationError("The calibration is of another model: its layers are not those of this one.")

    @property
    def full_ranks(self) -> list[int]:
        """K of each layer."""
        return full_ranks(self._layers.values(), self._family)

    def __getitem__(self, name: str) -> LayerProblem:
        layer = self._layers[name]
        query, key = projections(layer, self._family)
        moments = None if self._moments is None else self._moments[name]
        with torch.no_grad():
            if self._family.is_rotary(layer):
                return rotary_problem(query, key, self._family.num_heads(layer), self._device, moments)
            problem = LayerProblem.of(
                query.weight, query.bias, key.weight, self._family.num_heads(layer), self._device, moments
            )
            terms = self._family.position_terms(layer)
            if terms is None:
                return problem
            bias = None if key.bias is None else key.bias.to(self._device).double()
            return DisentangledProblem(problem.tensor, problem.query_bias, problem.moments, bias, terms)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def full_ranks(layers: Iterable[nn.Module], family: Family) -> list[int]:
    """K of native attention layers."""
    return [projections(layer, family)[0].out_features for layer in layers]


def projections(layer: nn.Module, family: Family) -> tuple[nn.Linear, nn.Linear]:
    """A native attention layer's query and key projections."""
    return family.projection(layer, "query"), family.projection(layer, "key")


def score_errors(
    original: PreTrainedModel, converted: PreTrainedModel, moments: Mapping[str, LayerMoments]
) -> dict[str, float]:
    """Relative errors of a converted model's scores, layer by layer, for example on held-out inputs.

    Args:
        original: the native model.
        converted: its conversion.
        moments: moments of the original's inputs, as in `collab.calibrate(...).moments`.

    Returns:
        The errors by module name; see `LayerReport.score_error`.
    """
    errors = {}
    for name, problem in LayerProblems(original, require_family(original.config), None, original.device).items():
        module = converted.get_submodule(name)
        assert isinstance(module, CollaborativeAttention)
        with torch.no_grad():
            errors[name] = problem.score_error(factors_of(module), moments[name])
    return errors
