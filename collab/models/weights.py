"""Checks and casts of a model's weights, and a hash of the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import WeightsError
from .sharded import class_name, whole


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


_OF_FILES = {"_name_or_path", "_commit_hash", "transformers_version", "auto_map", "architectures", "dtype"}
"""Entries of a config that tell of its file, or change when it is written."""


def digest_of(model: PreTrainedModel) -> str:
    """A hash of a model's class and config and the names, shapes and values of its weights.

    Processes that share the weights all call this.
    """
    config = json.dumps(_without_files(model.config.to_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256(f"{class_name(model)}{config}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(bytes_of(whole(tensor)))
    return digest.hexdigest()


def _without_files(entries: Any) -> Any:
    """A config, with those inside it, without `_OF_FILES`; keys as they are in JSON."""
    if isinstance(entries, dict):
        return {str(name): _without_files(entry) for name, entry in entries.items() if name not in _OF_FILES}
    return entries


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor of any dtype and shape."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
