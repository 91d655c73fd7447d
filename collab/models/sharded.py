"""Models whose weights several processes share: each keeps a part, and a layer is whole while it computes (FSDP2)."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from ..device import resolve_device
from ..errors import UnsupportedArchitectureError
from ..processes import connect, processes
from .layers import attention_layers, entry_of

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc: from this size on, memory is mapped, and given back when it is free."""

_LARGE = 4_000_000


def sharded(
    model: PreTrainedModel, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """A copy of a model of which each process keeps a part of every weight, by torch's `fully_shard`.

    The model itself is not changed; where its weights are mapped from files they take no memory. Every process must
    run the copy, forward and backward, as often as the others. Gradients are the mean over the processes, and are
    sharded like the weights.

    Args:
        model: native or converted, whole in every process.
        device: device to compute on; None for the model's.
        dtype: dtype of the weights; None for the model's.

    Returns:
        The copy; in a single process a whole one, of the model's own weights where nothing is cast.

    Raises:
        UnsupportedArchitectureError: if collab does not know the model's layers.
    """
    device = device or model.device
    twin = _sharing_weights(model)
    layers = [twin.get_submodule(name) for name in _layer_names(twin)]
    for part in (*layers, twin):
        _cast(part, device, dtype)
        if processes() > 1:
            _shard(part, device)
    return twin


def sharding(wanted: bool) -> bool:
    """Whether weights are to be shared, which takes several processes."""
    return wanted and processes() > 1


def as_run(
    model: PreTrainedModel, shard: bool, device: str | None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """A model as a run uses it: a sharded copy where that is wanted, by several processes, or the model itself.

    Args:
        model: as in `sharded`.
        shard: whether that is wanted.
        device: name of the device to compute on; see `resolve_device`.
        dtype: dtype of the copy's weights; None for the model's.
    """
    return sharded(model, resolve_device(device), dtype) if sharding(shard) else model


def forget_shards() -> None:
    """Gives the memory of shared copies that are no longer used back to the system."""
    gc.collect()  # their modules, and torch's notes of them, refer to each other
    with contextlib.suppress(OSError, AttributeError):  # other systems than Linux with glibc
        ctypes.CDLL(None).malloc_trim(0)


def _return_at_once() -> None:
    """Has this process give every large piece of memory back as soon as it is free.

    By itself glibc begins to keep pieces of up to 32 MB, once some of that size were freed. Layers that are gathered
    and dropped again then leave holes, of as much as several layers.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is one of those that `sharded` makes in several processes."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def class_name(model: PreTrainedModel) -> str:
    """The name of a model's class, which that of a sharded model is derived from."""
    return next(kind.__name__ for kind in type(model).__mro__ if not hasattr(kind, "set_requires_gradient_sync"))


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that the processes share, which all call this; any other tensor as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def take_weights(model: PreTrainedModel, trained: Mapping[str, Tensor]) -> None:
    """Gives a model new values of some of its parameters, by name, in its own dtype and on its own device.

    Args:
        model: the model; tensors that it shares with another model are replaced, not changed.
        trained: the values, whole or sharded; all processes call this.
    """
    for name, parameter in model.named_parameters():
        if name in trained:
            parameter.data = whole(trained[name].detach()).to(parameter).clone()


def _layer_names(model: PreTrainedModel) -> list[str]:
    """The names of the model's layers, which are whole one at a time."""
    names = dict[str, None]()
    for layer in attention_layers(model):
        with contextlib.suppress(UnsupportedArchitectureError):  # in no list, so it is whole with the rest
            names[entry_of(model, layer.name)] = None
    return list(names)


def _sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model's modules with the same parameters and buffers."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def _cast(part: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Replaces the parameters and buffers of a module, but those that are shards already, by cast ones."""
    cast: dict[int, nn.Parameter] = {}  # tied ones stay tied
    for module in part.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not hasattr(parameter, "full_tensor"):
                new = parameter.detach().to(device, dtype if parameter.is_floating_point() else None)
                setattr(module, name, cast.setdefault(id(parameter), nn.Parameter(new, parameter.requires_grad)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device, dtype if buffer.is_floating_point() else None))


def _shard(part: nn.Module, device: torch.device) -> None:
    from torch.distributed.fsdp import fully_shard

    connect()
    if device.type == "cpu":
        _return_at_once()
    part.register_forward_hook(_without_views)
    # The outermost one, too: weights that change between two runs without gradients would be out of date.
    fully_shard(part, mesh=_mesh(device.type), reshard_after_forward=True)
    if isinstance(part, PreTrainedModel):  # whose class is another one now, by which transformers finds what it records
        dict.__setitem__(_CAN_RECORD_REGISTRY, str(type(part)), part._can_record_outputs)


def _without_views(module: nn.Module, args: tuple, output: Any) -> Any:
    """What a module returns, with copies of views: FSDP2 loses track of a view that is changed in place, and warns."""
    return tree_map_only(Tensor, lambda tensor: tensor if tensor._base is None else tensor.clone(), output)


def _mesh(kind: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(kind, (processes(),))
