"""Converting a pruned original: expanded to the equivalent native model, converted, and pruned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..conversion.expand import expand
from ..io.load import Checkpoint, load
from ..io.read import Source, read_config
from ..io.report import Conversion, Count
from ..models.families import collaborative_layers
from ..models.layers import head_layers, parameters
from .removal import prune


@dataclass(frozen=True)
class PrunedOriginal:
    """A model that was pruned but not converted otherwise.

    Attributes:
        checkpoint: the native model with the same outputs; weights of pruned heads are zero.
        keep: by layer name, the heads left.
        parameters: counts for the pruned model; see `collab.models.layers.parameters`.
    """

    checkpoint: Checkpoint
    keep: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, int]

    def prune_again(self, conversion: Conversion) -> Conversion:
        """Prunes the conversion of the native model to the same heads."""
        model = prune(conversion.model, self.keep)
        left = parameters(model)
        query_key, attention, whole = (
            Count(self.parameters[name], left[name]) for name in ("query_key", "attention", "model")
        )
        return Conversion(model, replace(conversion.report, query_key=query_key, attention=attention, model=whole))


def read_pruned(source: Source) -> PrunedOriginal | None:
    """Reads a folder if it holds a pruned original; None if it holds anything else.

    Raises:
        CheckpointError: if a pruned original cannot be read.
    """
    config = read_config(source.folder)
    layers = config.get("collab_layers")
    if config.get("collab_feed_forward") or config.get("collab_dropped_layers"):
        return None
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        return None
    if all("heads" not in layer for layer in layers) or any(layer.get("form") != "concat" for layer in layers):
        return None
    loaded = load(str(source.folder))
    whole = [layer for layer in collaborative_layers(loaded.model).values() if layer.heads]
    if any(layer.head_ranks is None or set(layer.head_ranks) != {layer.attention_head_size} for layer in whole):
        return None
    if any(layer.value_width != layer.attention_head_size for layer in whole):
        return None
    keep = {layer.name: layer.heads for layer in head_layers(loaded.model)}
    checkpoint = replace(loaded, model=expand(loaded.model).model)
    return PrunedOriginal(checkpoint, keep, parameters(loaded.model))
