"""Converting a pruned original: expanded to the equivalent native model, converted, and pruned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from ..conversion.expand import expand
from ..decomposition.options import NATIVE_FORM
from ..io.checkpoint import Checkpoint
from ..io.load import load_source
from ..io.options import LoadOptions
from ..io.read import Source, read_config
from ..models.families import collaborative_layers
from ..models.layers import attention_layers, parameters
from ..steps.step import Parameters
from .removal import remove_heads


@dataclass(frozen=True)
class PrunedOriginal:
    """A model that was pruned but not converted otherwise.

    Attributes:
        checkpoint: the native model with the same outputs; weights of pruned heads are zero.
        keep: by layer name, the heads left.
        model: the pruned model.
    """

    checkpoint: Checkpoint
    keep: Mapping[str, tuple[int, ...]]
    model: PreTrainedModel

    def prune_again(self, converted: Checkpoint) -> Checkpoint:
        """Prunes the conversion of the native model to the same heads; its report counts from the pruned model."""
        model = remove_heads(converted.model, self.keep)
        report = replace(converted.report, parameters=Parameters.of(parameters(self.model), parameters(model)))
        return replace(converted, model=model, steps=(*converted.steps[:-1], report))


def read_pruned(source: Source, options: LoadOptions) -> PrunedOriginal | None:
    """Reads a folder if it holds a pruned original; None if it holds anything else.

    Raises:
        CheckpointError: if a pruned original cannot be read.
    """
    config = read_config(source.folder)
    layers = config.get("collab_layers")
    compressed = ("collab_feed_forward", "collab_dropped_layers", "collab_dropped_decoder_layers")
    if any(config.get(name) for name in compressed):
        return None
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        return None
    if all("heads" not in layer for layer in layers) or any(layer.get("form") != NATIVE_FORM for layer in layers):
        return None
    if any(layer.get("long") for layer in layers):  # which the native model of the same outputs would lack
        return None
    loaded = load_source(source, options)
    whole = [layer for layer in collaborative_layers(loaded.model).values() if layer.heads]
    if any(layer.head_ranks is None or set(layer.head_ranks) != {layer.attention_head_size} for layer in whole):
        return None
    if any(layer.value_width != layer.attention_head_size for layer in whole):
        return None
    keep = {layer.name: layer.heads for layer in attention_layers(loaded.model)}
    checkpoint = replace(loaded, model=expand(loaded.model).model)
    return PrunedOriginal(checkpoint, keep, loaded.model)
