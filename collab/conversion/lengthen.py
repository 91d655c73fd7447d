"""Has the attention of a model compute long rows in blocks."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..io.checkpoint import Checkpoint
from ..io.head import pools_first_token
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_config import AttentionSpec, LongRows
from ..modeling.collab_native import LayerKind
from ..models.assembly import rebuilt
from ..models.families import collaborative_layers
from ..models.inputs import has_length, longest_input, probe_inputs, takes_waveforms
from ..models.positions import with_positions
from ..models.states import evaluating
from ..planning.long_rows import LongOptions
from ..steps.long_rows import Lengthening
from ..steps.step import Count
from .convert import convert_losslessly
from .dense_layers import errors_in_blocks, layers_within, long_rows

logger = logging.getLogger(__name__)


def lengthen(
    checkpoint: Checkpoint | PreTrainedModel, options: LongOptions | None = None, texts: Iterable[str] | None = None
) -> Checkpoint:
    """Has a model's attention compute long rows in blocks, in time and memory that grow with their length.

    Rows below `LongOptions.dense_below` are computed as before. Nothing is trained: `collab.refine` and `collab.heal`
    train the result, on long rows.

    Args:
        checkpoint: a converted or compressed model, or an original, which is converted losslessly first; not changed.
        options: settings.
        texts: text to choose dense layers on, which is joined to long rows; needed with ``dense_layers="auto"`` only.

    Returns:
        The model, with a `Lengthening` as its report. Weights that stay are shared.

    Raises:
        ConfigurationError: if the settings do not fit the model.
        DataError: if there is too little text to choose dense layers on.
        UnsupportedArchitectureError: if the model has no attention that can be computed in blocks, or its positions
            cannot be extended.
    """
    options = options or LongOptions()
    checkpoint = Checkpoint.of(checkpoint)
    original = checkpoint
    if not collaborative_layers(checkpoint.model):
        checkpoint = convert_losslessly(checkpoint)
    layers = collaborative_layers(checkpoint.model)
    before = _longest_row(checkpoint.model, next(iter(layers.values())))
    _check_length(before, options)
    after = None if before is None else options.max_length or before
    if options.attention != "dense":
        _check(original, options, layers, after)
    longer = checkpoint.model
    if after is not None and after != before:
        longer = with_positions(longer, after, options.positions)
    errors = None
    if options.dense_layers == "auto":
        rows = long_rows(checkpoint, texts, options.dense_below, after)
        every = replace(options, dense_layers=())
        blocks = _in_blocks(longer, layers, _chosen(layers, every), every)
        errors = errors_in_blocks(_in_blocks(longer, layers, [], every), blocks, rows)
        options = replace(every, dense_layers=layers_within(blocks, errors, after, options.dense_budget))
    chosen = [] if options.attention == "dense" else _chosen(layers, options)
    model = _in_blocks(longer, layers, chosen, options)
    lengths = None if before is None or after is None else Count(before, after)
    causal = options.attention != "dense" and _kind(layers) == "decoder"
    step = Lengthening(options.to_dict(), {name: name in chosen for name in layers}, lengths, errors, causal)
    processor = checkpoint.processor if after == before else _longer(checkpoint.processor, after)
    return checkpoint.then(step, model=model, processor=processor)


def _check_length(before: int | None, options: LongOptions) -> None:
    """Raises a ConfigurationError if settings of positions would do nothing to a model of so many tokens."""
    if before is None and (options.max_length is not None or options.positions != "keep"):
        raise ConfigurationError(
            "The model takes recordings of any length, so max_length (--max-length) and positions (--positions) do not "
            "apply."
        )
    if before is not None and options.max_length is not None and options.max_length < before:
        raise ConfigurationError(
            f"max_length={options.max_length} (--max-length) is below the {before} tokens that the model takes already."
        )
    if options.positions != "keep" and options.max_length in (None, before):
        raise ConfigurationError(
            f"positions={options.positions!r} (--positions) gives further positions: name a longest row above the "
            f"{before} tokens that the model takes already, with max_length (--max-length)."
        )


def _in_blocks(
    model: PreTrainedModel, layers: dict[str, CollaborativeAttention], chosen: Sequence[str], options: LongOptions
) -> PreTrainedModel:
    """The model with these layers in blocks and the others dense; its weights are shared."""
    summaries = options.summaries if options.attention == "summaries" else None
    long = LongRows(options.block, options.global_tokens, options.dense_below, summaries)
    specs = [replace(layer.spec, long=long if name in chosen else None) for name, layer in layers.items()]
    return with_specs(model, specs)


def with_specs(model: PreTrainedModel, specs: Sequence[AttentionSpec]) -> PreTrainedModel:
    """A collaborative model whose layers, of the same widths, have other specs; its weights are shared."""
    config = copy.deepcopy(model.config)
    config.collab_layers = [spec.to_dict() for spec in specs]
    return rebuilt(model, config, model.state_dict())


def _check(
    checkpoint: Checkpoint, options: LongOptions, layers: dict[str, CollaborativeAttention], longest: int | None
) -> None:
    """Checks that settings fit a model whose rows have at most `longest` tokens, or any number."""
    kind, name = _kind(layers), type(checkpoint.model).__name__
    able = [layer for layer in layers.values() if layer.kind == kind]
    if kind == "decoder" and getattr(checkpoint.model.config, "sliding_window", None) is not None:
        raise UnsupportedArchitectureError(
            f"{name} has attention in a window of its own (sliding_window in its config), beyond which its cache "
            "forgets already, so its long rows take time and memory that grow with their length as they are."
        )
    if not any(options.attention in layer.long_kinds for layer in able):
        others = list(able[0].long_kinds)
        raise UnsupportedArchitectureError(
            f"{name} has attention in a window of its own, which {options.attention} has no form for; choose "
            f"{' or '.join(others)} (--attention)."
            if others
            else f"The scores of {name} depend on relative positions, for which no attention in blocks is there."
        )
    if longest is not None and options.block > longest:
        raise ConfigurationError(
            f"A block of {options.block} tokens (--block) is longer than the longest row, {longest}. Choose a smaller "
            "one, or extend the positions (--max-length, --positions)."
        )
    if longest is not None and options.dense_below > longest:
        raise ConfigurationError(
            f"No row would be long: rows have at most {longest} tokens, and those of less than {options.dense_below} "
            "(dense_below, --dense-below) are computed as before. Choose a smaller number, or extend the positions "
            "(--max-length, --positions)."
        )
    if not options.global_tokens and pools_first_token(checkpoint.model, checkpoint.folder):
        raise ConfigurationError(
            f"{name} answers by its first token, which without global tokens would see only the next blocks. Keep at "
            "least one (--global-tokens 1)."
        )
    numbers = () if options.dense_layers == "auto" else options.dense_layers
    out = [layer for layer in numbers if not 0 <= layer < len(layers)]
    if out:
        raise ConfigurationError(
            f"dense_layers (--dense-layers) names layer {out[0]}; the model has {len(layers)}, numbered from 0."
        )


def _chosen(layers: dict[str, CollaborativeAttention], options: LongOptions) -> list[str]:
    """The layers that compute long rows in blocks: those that may, are not to stay dense, and have heads."""
    kind = _kind(layers)
    chosen = [
        name
        for number, (name, layer) in enumerate(layers.items())
        if number not in options.dense_layers
        and layer.kind == kind
        and layer.heads
        and options.attention in layer.long_kinds
    ]
    if not chosen:
        raise ConfigurationError("All layers would stay dense (dense_layers, --dense-layers), so nothing would change.")
    return chosen


def _kind(layers: dict[str, CollaborativeAttention]) -> LayerKind:
    """The kind of layers that compute long rows in blocks: those of an encoder, or of a model that is a decoder alone.

    A decoder that reads what an encoder gives writes rows that are short beside it.
    """
    return "encoder" if any(layer.kind == "encoder" for layer in layers.values()) else "decoder"


def _longest_row(model: PreTrainedModel, layer: CollaborativeAttention) -> int | None:
    """The number of tokens in the longest row of a model's first attention layer; None if recordings have no limit."""
    if takes_waveforms(model):
        return None
    if has_length(model):
        return longest_input(model)
    seen: list[int] = []

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        seen.append(states.shape[1])

    with layer.register_forward_pre_hook(see, with_kwargs=True), evaluating(model), torch.no_grad():
        model(**probe_inputs(model))
    return max(seen)


def _longer(processor: Any, longest: int | None) -> Any:
    """A tokenizer that allows rows as long as the model's; others as they are."""
    if longest is None or not hasattr(processor, "model_max_length"):
        return processor
    processor = copy.deepcopy(processor)
    processor.model_max_length = longest
    return processor
