"""A collaborative model from its class, its config and its weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_utils import local_torch_dtype

from ..modeling.collab_model import optional_parts
from .weights import cast


def assemble(
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    state: Mapping[str, Tensor],
    like: PreTrainedModel,
    trainable: Mapping[str, bool],
    *,
    share: bool = False,
) -> PreTrainedModel:
    """Builds a model from its config and assigns its weights.

    Args:
        model_class: a collaborative class.
        config: its config.
        state: its complete state dict; the tensors are used without a copy.
        like: the model that it was made from; device, mode, optional parts and generation config are taken from it.
        trainable: whether the parameter of a name requires gradients; default True.
        share: whether the generation config may be the same object instead of a copy.

    Returns:
        The model.
    """
    with unfilled(like.dtype):
        model = model_class(config, **optional_parts(like))
    fill(model, state, like, trainable, share=share)
    return model


def rebuilt(model: PreTrainedModel, config: PretrainedConfig, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model of the same class and parts by another config; its parameters require gradients as the model's do.

    Args:
        model: native or converted. It is not changed.
        config: config of the new model.
        state: its complete state dict; the tensors are used without a copy.
    """
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    return assemble(type(model), config, state, model, trainable)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A model in another dtype, as it would be loaded.

    Rotary frequencies stay in float32, and so do weights that transformers keeps in it (T5's `wo`, beside float16).

    Args:
        model: native or converted. It is not changed.
        dtype: dtype of the weights.

    Returns:
        The model itself if it is in that dtype; else a new one.

    Raises:
        WeightsError: if a weight does not fit the dtype.
    """
    if model.dtype == dtype:
        return model
    with unfilled(dtype):
        new = type(model)(model.config, **optional_parts(model))
    state, built, kept = model.state_dict(), new.state_dict(), new._get_dtype_plan(dtype)
    precise = {
        name: state.pop(name)
        for name in list(state)
        if built[name].dtype == torch.float32 or any(f".{part}." in f".{name}" for part in kept)
    }
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    fill(new, cast(state, dtype) | cast(precise, torch.float32), model, trainable, share=True)
    return new


def described_shapes(model: PreTrainedModel, config: PretrainedConfig) -> dict[str, torch.Size]:
    """The shapes of the tensors that a model of the same class and parts has by a config, by name."""
    with torch.device("meta"), init.no_init_weights():
        state = type(model)(config, **optional_parts(model)).state_dict()
    return {name: tensor.shape for name, tensor in state.items()}


@contextlib.contextmanager
def unfilled(dtype: torch.dtype) -> Iterator[None]:
    """Models built inside the context have no weights yet, and their computed buffers a dtype."""
    with init.no_init_weights(), local_torch_dtype(dtype):
        yield


def fill(
    model: PreTrainedModel,
    state: Mapping[str, Tensor],
    like: PreTrainedModel,
    trainable: Mapping[str, bool],
    *,
    share: bool = False,
) -> None:
    """Assigns weights to a model that was built without them, and device, mode and settings of another model.

    Args:
        model: the model, just built.
        state: as in `assemble`.
        like: as in `assemble`.
        trainable: as in `assemble`.
        share: as in `assemble`.
    """
    model.load_state_dict(dict(state), strict=True, assign=True)
    # Ties the weights that the config ties if they are equal, as from_pretrained does.
    model.tie_weights(missing_keys=set(), recompute_mapping=False)
    model.to(like.device)  # type: ignore[arg-type]  # buffers that are not saved
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable.get(name, True))
    for module in model.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]  # a wrapper that initializes its parts leaves these weights alone
    model.train(like.training)
    if any(getattr(module, "gradient_checkpointing", False) for module in like.modules()):
        model.gradient_checkpointing_enable()
    if getattr(like, "generation_config", None) is not None:
        model.generation_config = like.generation_config if share else copy.deepcopy(like.generation_config)


def renumber_aligned_layers(model: PreTrainedModel, there: Sequence[bool]) -> None:
    """Renumbers the layers of the same heads, of which a model may lack some.

    Args:
        model: any model; most have no such heads.
        there: for each of the original's layers with cross-attention, whether it is there.
    """
    settings = getattr(model, "generation_config", None)
    pairs = getattr(settings, "alignment_heads", None)
    if pairs and not all(there):
        left = [[sum(there[:layer]), head] for layer, head in pairs if there[layer]]
        settings.alignment_heads = left or None  # type: ignore[union-attr]


def renumber_alignment(model: PreTrainedModel, places: Sequence[Mapping[int, int]]) -> None:
    """Renumbers the heads by which Whisper tells when a word was said, `alignment_heads` in its generation config.

    Args:
        model: any model; most have none.
        places: for each cross-attention layer, the place of each head that is there, by its place before.
    """
    settings = getattr(model, "generation_config", None)
    pairs = getattr(settings, "alignment_heads", None)
    if pairs:
        there = [[layer, places[layer][head]] for layer, head in pairs if head in places[layer]]
        settings.alignment_heads = there or None  # type: ignore[union-attr]
