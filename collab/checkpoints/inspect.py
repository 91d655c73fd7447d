"""Describes the attention of a model in a folder without reading its weights (`collab inspect`)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PretrainedConfig

from ..errors import ConfigurationError
from ..heads.inspection import Inspection
from ..heads.inspection import inspect as inspect_model
from ..io.history import read_history
from ..io.load import config_of, model_class_of, without_weights
from ..io.options import LoadOptions
from ..io.read import read_config, resolve_source

_NUMBERS = "num_attention_heads", "num_key_value_heads", "decoder_attention_heads"
"""Entries of a config that are numbers of heads."""


def inspect(
    model: str,
    *,
    num_heads: int | None = None,
    lengths: Sequence[int] | None = None,
    load_options: LoadOptions | None = None,
) -> Inspection:
    """Describes the attention of a model in a folder or on the Hub, original or converted, without reading its weights.

    Args:
        model: folder or Hub id.
        num_heads: number of heads to use instead of the config's.
        lengths: sequence lengths T to count the arithmetic for, in tokens; None for 32, 128 and 512, or what the model
            accepts where that is less.
        load_options: how to read the model.

    Raises:
        CheckpointError: if there is no such model.
        UnsupportedArchitectureError: if its attention is not supported.
        ConfigurationError: if the hidden size cannot be divided among `num_heads`.
    """
    source = resolve_source(model, (load_options or LoadOptions()).revision)
    raw = read_config(source.folder)
    config = config_of(source)
    model_class = model_class_of(raw, source.name)
    if num_heads is not None:
        _divide(config, num_heads)
    built = without_weights(model_class, config, source.name)
    return inspect_model(built, lengths=lengths, history=read_history(source.folder))


def _divide(config: PretrainedConfig, num_heads: int) -> None:
    """Gives a config another number of heads, wherever it says one.

    Raises:
        ConfigurationError: if the hidden size cannot be divided among them, or the model has several numbers of heads.
    """
    if getattr(config, "collab_layers", None) is not None:
        raise ConfigurationError("num_heads (--num-heads) applies to originals only; this model is converted.")
    numbers = {name for name in _NUMBERS if getattr(config, name, None) is not None}
    width = getattr(config, "hidden_size", None)
    if width is None or len({getattr(config, name) for name in numbers}) != 1:
        raise ConfigurationError(
            "num_heads (--num-heads) applies to models whose layers all have the same number of heads, also of keys."
        )
    head_dim = getattr(config, "head_dim", None)
    total = width if head_dim is None else head_dim * getattr(config, next(iter(numbers)))  # K, which stays
    if num_heads < 1 or total % num_heads:
        what = "A hidden size" if head_dim is None else "Queries"
        raise ConfigurationError(f"{what} of {total} cannot be divided among {num_heads} heads.")
    for name in numbers:
        setattr(config, name, num_heads)
    if head_dim is not None:
        config.head_dim = total // num_heads
