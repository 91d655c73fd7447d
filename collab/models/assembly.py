"""A collaborative model from its class, its config and its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers import initialization as init

from ..modeling.collab_model import optional_parts


def assemble(
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    state: Mapping[str, Tensor],
    like: PreTrainedModel,
    trainable: Mapping[str, bool],
    *,
    share: bool = False,
) -> PreTrainedModel:
    """Builds a model as its config says and fills it.

    Args:
        model_class: a collaborative class.
        config: its config.
        state: all its weights; they are used as they are, not copied.
        like: the model that it was made from, whose device, mode, optional parts and generation config it takes.
        trainable: whether a parameter of this name takes gradients; those that are not named do.
        share: whether the generation config may be the same object.
    """
    with init.no_init_weights():
        model = model_class(config, **optional_parts(like))
    fill(model, state, like, trainable, share=share)
    return model


def fill(
    model: PreTrainedModel,
    state: Mapping[str, Tensor],
    like: PreTrainedModel,
    trainable: Mapping[str, bool],
    *,
    share: bool = False,
) -> None:
    """Gives a model that was built without weights its weights, and what else it has in common with another one.

    Args:
        model: just built.
        state: see `assemble`, as the others.
        like: likewise.
        trainable: likewise.
        share: likewise.
    """
    model.load_state_dict(dict(state), strict=True, assign=True)
    # Ties what the config ties where it is equal, as from_pretrained does.
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
