"""The time of a layer at any widths, measured on this processor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..planning.allocation import Widths
from ..planning.budget import OF_ANOTHER, OF_ITSELF, Part
from .timed import Timed
from .widths import Narrowing

_ROUNDS = 11


@dataclass
class _Rates:
    """Seconds that a stack takes for each parameter and dimension of a head of a layer, and for a whole layer."""

    per_parameter: float = 0.0
    per_dimension: float = 0.0
    layer: float = 0.0


class LayerTimes:
    """Seconds of what is timed here: by the whole model and, by stack, by one with less of each kind of work.

    Projections and feed-forward layers take a time for each of their parameters. Attention takes a time for each
    dimension of a head beyond that: kernels compute queries, keys and values at one width, the wider one's. An
    encoder's times are other than its decoder's, which runs for every token that is written.

    Args:
        build: makes a model at some widths.
        parts: by layer, the parts that may be narrower.
        passes: by layer, how many times it is applied.
        stacks: the numbers of the layers of each stack.
        droppable: the layers that may be dropped.
        timed: what is timed.
    """

    def __init__(
        self,
        build: Callable[[Widths], PreTrainedModel],
        parts: Sequence[Mapping[Part, Narrowing]],
        passes: Sequence[float],
        stacks: Sequence[Sequence[int]],
        droppable: Collection[int],
        timed: Timed,
    ) -> None:
        self._parts, self._passes = parts, passes
        self._stack = {number: place for place, stack in enumerate(stacks) for number in stack}
        changes = [change for stack in stacks for change in self._changes(stack, droppable)]
        full: Widths = ({},) * len(parts)
        seconds = timed.seconds([timed.native, *map(build, (full, *changes))], _ROUNDS)
        self.whole, self.full, *others = map(min, seconds)  # other work only adds
        saved = [max(0.0, self.full - seconds) for seconds in others]
        self._rates = [
            self._rates_of(stack, changes[place : place + 3], saved[place : place + 3], droppable)
            for stack, place in zip(stacks, range(0, len(changes), 3), strict=True)
        ]

    def layer(self, number: int, widths: Mapping[Part, int]) -> float:
        """Seconds of a layer, over all its passes, as in `Costs`."""
        rates = self._rates[self._stack[number]]
        parameters, dimensions = self._saved(number, widths)
        return rates.layer - rates.per_parameter * parameters - rates.per_dimension * dimensions

    def _changes(self, stack: Sequence[int], droppable: Collection[int]) -> tuple[Widths, Widths, Widths]:
        """Widths with fewer neurons in a stack, with narrower heads, and without its last layer if that may go."""
        quarter = {
            number: {
                name: min(part.widths, key=lambda width: abs(width - part.widths[0] / 4))
                for name, part in self._parts[number].items()
            }
            for number in stack
        }
        layers = range(len(self._parts))
        neurons, heads = (
            tuple(
                {
                    name: width
                    for name, width in quarter.get(number, {}).items()
                    if (name == "feed-forward") == of_neurons
                }
                for number in layers
            )
            for of_neurons in (True, False)
        )
        return neurons, heads, tuple(None if number == stack[-1] and number in droppable else {} for number in layers)

    def _rates_of(
        self, stack: Sequence[int], changes: Sequence[Widths], seconds: Sequence[float], droppable: Collection[int]
    ) -> _Rates:
        """The rates of a stack from the seconds that each of `_changes` saved."""
        rates = _Rates(layer=seconds[2] if stack[-1] in droppable else self.full / len(self._parts))
        neurons, heads = (
            [self._saved(number, widths[number] or {}) for number in stack] for widths in (changes[0], changes[1])
        )
        of_neurons, of_heads = (sum(parameters for parameters, _ in saved) for saved in (neurons, heads))
        dimensions = sum(count for _, count in heads)
        if of_neurons:
            rates.per_parameter = seconds[0] / of_neurons
        elif of_heads:
            rates.per_parameter = seconds[1] / of_heads
        if dimensions:
            rates.per_dimension = max(0.0, seconds[1] - rates.per_parameter * of_heads) / dimensions
        return rates

    def _saved(self, number: int, widths: Mapping[Part, int]) -> tuple[float, float]:
        """Parameters, and dimensions of a head in steps of 8, that a layer has less, over all its passes."""
        parts, passes = self._parts[number], self._passes[number]
        chosen = {name: widths.get(name, part.widths[0]) for name, part in parts.items()}
        parameters = sum(
            part.parameters(part.widths[0]) - part.parameters(chosen[name]) for name, part in parts.items()
        )
        dimensions = sum(_head_width(parts, {}, of) - _head_width(parts, chosen, of) for of in (OF_ITSELF, OF_ANOTHER))
        return parameters * passes, dimensions * passes


def _head_width(parts: Mapping[Part, Narrowing], widths: Mapping[Part, int], of: tuple[Part, Part]) -> int:
    """The width that kernels compute a head at: the wider one's. 0 if one of both keeps its width, and so this."""
    if not set(of) <= parts.keys():
        return 0
    full, head_dim = (parts[part].widths[0] for part in of)  # K and d
    query_key = widths.get(of[0], full) // (full // head_dim)
    wider = max(query_key, widths.get(of[1], head_dim))
    return -(-wider // 8) * 8
