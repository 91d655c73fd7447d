"""Describes the attention of a model in a folder without reading its weights (`collab inspect`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from ..heads.inspection import Inspection
from ..heads.inspection import inspect as inspect_model
from ..io.history import read_history
from ..io.load import config_of, model_class_of, without_weights
from ..io.options import LoadOptions
from ..io.read import read_config, resolve_source


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
        width = config.hidden_size
        if num_heads < 1 or width % num_heads:
            raise ConfigurationError(f"A hidden size of {width} cannot be divided among {num_heads} heads.")
        if getattr(config, "collab_layers", None) is not None:
            raise ConfigurationError("num_heads (--num-heads) applies to originals only; this model is converted.")
        config.num_attention_heads = num_heads
    built = without_weights(model_class, config, source.name)
    return inspect_model(built, lengths=lengths, history=read_history(source.folder))
