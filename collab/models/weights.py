"""Checks of a model's weights."""

from __future__ import annotations

from transformers import PreTrainedModel

from ..errors import WeightsError


def check_finite(model: PreTrainedModel) -> None:
    """Raises a WeightsError, naming the tensor, for a weight that is NaN, infinite or not in memory."""
    for name, tensor in model.state_dict().items():
        if tensor.device.type == "meta":
            raise WeightsError(
                f"{name} is not in memory (offloaded or never loaded). Load the model without device_map."
            )
        if tensor.is_floating_point() and tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax()):
            raise WeightsError(f"{name} has NaN or infinite entries, so the model cannot be used.")
