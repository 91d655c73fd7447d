"""Checks, casts and hashes of a model's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import WeightsError
from .sharded import whole


def check_finite(model: PreTrainedModel) -> None:
    """Raises a WeightsError, naming the tensor, for a weight that is NaN, infinite or not in memory."""
    for name, tensor in model.state_dict().items():
        if tensor.device.type == "meta":
            raise WeightsError(
                f"{name} is not in memory (offloaded or never loaded). Load the model without device_map."
            )
        if tensor.is_floating_point() and tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax()):
            raise WeightsError(f"{name} has NaN or infinite entries, so the model cannot be used.")


def check_cast(exact: Mapping[str, Tensor], cast: Mapping[str, Tensor]) -> None:
    """Raises a WeightsError, naming the tensor, if a cast made a finite tensor infinite."""
    for name, tensor in cast.items():
        if tensor.is_floating_point() and not tensor.isfinite().all() and exact[name].isfinite().all():
            raise WeightsError(
                f"{name} does not fit {str(tensor.dtype).removeprefix('torch.')}: its largest entry is "
                f"{float(exact[name].abs().max()):.3g}. Use bfloat16 or float32."
            )


def cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors in another dtype; integers stay as they are.

    Raises:
        WeightsError: if a tensor does not fit the dtype.
    """
    new = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    check_cast(state, new)
    return new


def digest_of(model: PreTrainedModel) -> str:
    """A hash of the names, shapes and values of a model's weights; processes that share them all call this."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(bytes_of(whole(tensor)))
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor of any dtype and shape."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
