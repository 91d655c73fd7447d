"""The time of a layer at any widths, measured on this processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from ..evaluation.timing import rounds_in_turn
from ..planning.allocation import Widths
from ..planning.budget import Part
from .widths import Narrowing

_ROUNDS = 11


class LayerTimes:
    """Seconds of a pass on this processor, from four models: the whole, and one with less of each kind of work.

    Projections and feed-forward layers take a time for each of their parameters. Attention takes a time for each
    dimension of a head beyond that: kernels compute queries, keys and values at one width, the wider one's.

    Args:
        build: makes a model at some widths.
        parts: by layer, the parts that may be narrower.
        passes: by layer, how many times it is applied.
        may_drop: whether layers can be dropped.
        native: the original.
        rows: the batch to measure.
    """

    def __init__(
        self,
        build: Callable[[Widths], PreTrainedModel],
        parts: Sequence[Mapping[Part, Narrowing]],
        passes: Sequence[float],
        may_drop: bool,
        native: PreTrainedModel,
        rows: Mapping[str, Tensor],
    ) -> None:
        self._parts, self._passes = parts, passes
        self._per_parameter = self._per_dimension = self._layer = 0.0
        layers = range(len(parts))
        quarter = [
            {name: min(part.widths, key=lambda width: abs(width - part.widths[0] / 4)) for name, part in own.items()}
            for own in parts
        ]
        neurons: Widths = tuple({n: w for n, w in own.items() if n == "feed-forward"} for own in quarter)
        attention: Widths = tuple({n: w for n, w in own.items() if n != "feed-forward"} for own in quarter)
        dropped: Widths = ({},) * (len(parts) - 1) + (None if may_drop else {},)
        models = [build(widths) for widths in (({},) * len(parts), neurons, attention, dropped)]
        runs = [(model, [dict(rows)]) for model in (native, *models)]
        rounds = rounds_in_turn(runs, _ROUNDS)
        self.whole, self.full, *others = (min(times) for times in zip(*rounds, strict=True))  # other work only adds
        fewer_neurons, narrower_heads, fewer_layers = (max(0.0, self.full - seconds) for seconds in others)
        saved = [
            sum(self._saved(number, widths[number] or {})[0] for number in layers) for widths in (neurons, attention)
        ]
        dimensions = sum(self._saved(number, attention[number] or {})[1] for number in layers)
        if saved[0]:
            self._per_parameter = fewer_neurons / saved[0]
        elif saved[1]:
            self._per_parameter = narrower_heads / saved[1]
        if dimensions:
            self._per_dimension = max(0.0, narrower_heads - self._per_parameter * saved[1]) / dimensions
        self._layer = fewer_layers if may_drop else self.full / len(parts)

    def layer(self, number: int, widths: Mapping[Part, int]) -> float:
        """Seconds of a layer, over all its passes, as in `Costs`."""
        parameters, dimensions = self._saved(number, widths)
        return self._layer - self._per_parameter * parameters - self._per_dimension * dimensions

    def _saved(self, number: int, widths: Mapping[Part, int]) -> tuple[float, float]:
        """Parameters, and dimensions of a head in steps of 8, that a layer has less, over all its passes."""
        parts, passes = self._parts[number], self._passes[number]
        chosen = {name: widths.get(name, part.widths[0]) for name, part in parts.items()}
        parameters = sum(
            part.parameters(part.widths[0]) - part.parameters(chosen[name]) for name, part in parts.items()
        )
        return parameters * passes, (self._head_width(parts, {}) - self._head_width(parts, chosen)) * passes

    def _head_width(self, parts: Mapping[Part, Narrowing], widths: Mapping[Part, int]) -> int:
        """The width that kernels compute a head at: the wider one's. 0 if one of both keeps its width, and so this."""
        if not {"queries-keys", "values"} <= parts.keys():
            return 0
        full, head_dim = parts["queries-keys"].widths[0], parts["values"].widths[0]  # K and d
        query_key = widths.get("queries-keys", full) // (full // head_dim)
        wider = max(query_key, widths.get("values", head_dim))
        return -(-wider // 8) * 8
