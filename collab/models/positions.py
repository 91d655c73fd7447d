"""Positions beyond those that a model was made with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from .assembly import described_shapes, rebuilt
from .inputs import has_decoder, has_length, longest_input

PositionsRule = Literal["keep", "copy", "interpolate"]
_POSITIONS = ("max_position_embeddings", "rope_parameters")
"""Entries of a config that say how many positions there are, and how rotary ones turn."""


def with_positions(model: PreTrainedModel, length: int, rule: PositionsRule) -> PreTrainedModel:
    """A model that takes rows of so many tokens; the model itself if it does already. Weights that stay are shared.

    Args:
        model: native or converted.
        length: tokens of the longest row.
        rule: where further positions come from; see `collab.LongOptions`.

    Raises:
        ConfigurationError: if there are further positions, and the rule is to keep those that there are.
        UnsupportedArchitectureError: if the model's rows have no further positions, or its rotary ones no scale.
    """
    before = longest_input(model)
    if has_length(model) and length <= before:
        return model
    if has_length(model) and rule == "keep":
        raise ConfigurationError(
            f"max_length={length} (--max-length) is beyond the model's {before} positions. Extend them with positions="
            "'copy' or 'interpolate' (--positions)."
        )
    if not has_length(model) or has_decoder(model) or getattr(model.config, _POSITIONS[0], None) is None:
        raise UnsupportedArchitectureError(
            f"The positions of {type(model).__name__} cannot be extended: encoders and decoders of text with a table "
            "of positions, or rotary ones, take longer rows. Leave out max_length (--max-length)."
        )
    config = _with_own_range(model.config)
    config.max_position_embeddings += length - before
    state = model.state_dict()
    longer = [name for name, shape in described_shapes(model, config).items() if shape != state[name].shape]
    if not longer and rule == "interpolate":
        config.rope_parameters = _slower(getattr(config, "rope_parameters", None), length / before)
    extend = _repeated if rule == "copy" else _stretched
    return _extended(model, config, lambda name, tensor, rows: extend(tensor, len(tensor) - before, rows))


def with_positions_of(model: PreTrainedModel, longer: PreTrainedModel) -> PreTrainedModel:
    """A model with the positions of one that was made of it, whose rows may be longer; weights are shared.

    So the original can be compared with, and teach, a model on rows that it does not take itself.
    """
    if has_decoder(model) or not has_length(model) or longest_input(longer) <= longest_input(model):
        return model
    config = _with_own_range(model.config)
    for name in _POSITIONS:
        if hasattr(longer.config, name):
            setattr(config, name, copy.deepcopy(getattr(longer.config, name)))
    state = longer.state_dict()
    shapes = described_shapes(model, config)
    changed = [name for name, tensor in model.state_dict().items() if shapes[name] != tensor.shape]
    if any(name not in state or state[name].shape != shapes[name] for name in changed):
        return model  # another architecture's
    return _extended(model, config, lambda name, tensor, rows: state[name].to(tensor))


def _with_own_range(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a config whose relative positions do not depend on the number of absolute ones, as DeBERTa's may."""
    own = copy.deepcopy(config)
    if getattr(own, "max_relative_positions", 1) < 1:
        own.max_relative_positions = own.max_position_embeddings
    return own


def _extended(
    model: PreTrainedModel, config: PretrainedConfig, extend: Callable[[str, Tensor, int], Tensor]
) -> PreTrainedModel:
    """The model with another config, by which some tables are longer."""
    state = {}
    shapes = described_shapes(model, config)
    for name, tensor in model.state_dict().items():
        state[name] = tensor if shapes[name] == tensor.shape else extend(name, tensor, shapes[name][0])
    return rebuilt(model, config, state)


def _repeated(table: Tensor, offset: int, rows: int) -> Tensor:
    """A table of positions, the first `offset` rows of which are of none, with its positions repeated."""
    places = torch.arange(rows - offset, device=table.device) % (len(table) - offset) + offset
    return torch.cat([table[:offset], table[places]])


def _stretched(table: Tensor, offset: int, rows: int) -> Tensor:
    """The same, with its positions at equal distances among the new ones, and others between them."""
    columns = table[offset:].T.unsqueeze(0).float()  # (1, D, P)
    longer = functional.interpolate(columns, size=rows - offset, mode="linear", align_corners=True)
    return torch.cat([table[:offset], longer[0].T.to(table.dtype)])


def _slower(parameters: Any, factor: float) -> dict[str, Any]:
    """Parameters of rotary positions, which turn slower by a factor."""
    if not isinstance(parameters, dict):
        raise UnsupportedArchitectureError(
            "The model's rotary positions cannot be stretched: its config has no rope_parameters. Let them go on with "
            "positions='copy' (--positions)."
        )
    if "rope_type" not in parameters:  # those of several kinds of layers
        return {name: _slower(each, factor) for name, each in parameters.items()}
    if parameters["rope_type"] not in ("default", "linear"):
        raise UnsupportedArchitectureError(
            f"The model's rotary positions are scaled already ({parameters['rope_type']}), so they cannot be "
            "stretched. Let them go on with positions='copy' (--positions)."
        )
    return parameters | {"rope_type": "linear", "factor": parameters.get("factor", 1.0) * factor}
