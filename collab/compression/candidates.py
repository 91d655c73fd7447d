"""A model at any widths: builds it, and predicts what it loses from one measurement of every part."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..calibration.calibrate import Calibration
from ..decomposition.options import DEFAULT_FORM, NATIVE_FORM, FormName
from ..errors import CalibrationError
from ..modeling.collab_config import AttentionSpec
from ..modeling.collab_native import as_linear
from ..models.assembly import assemble, renumber_aligned_layers
from ..models.families import Family, collaborative_layers
from ..models.layers import attention_layers, count_parameters
from ..planning.allocation import Costs, Curve, Widths
from ..planning.budget import OF_ANOTHER, OF_ITSELF, Part, Unit
from ..processes import divided, owners
from ..progress import Progress
from ..reparametrization.model import LayerProblems
from ..reparametrization.rotary import RotaryProblem
from .blocks import blocks_of, stacks_of
from .costs import LayerTimes
from .dropping import droppable, renumbered, weights_by_layer, without_layers
from .feed_forward import NarrowFeedForward
from .held_out import HeldOut
from .options import CompressionConfig
from .queries_keys import NarrowQueriesKeys, NarrowSharedKeys
from .statistics import collect
from .timed import Timed
from .values import NarrowValues
from .widths import Narrowed, Narrowing

logger = logging.getLogger(__name__)

_TOGETHER: tuple[tuple[Part, ...], ...] = (OF_ITSELF, OF_ANOTHER, ("feed-forward",))
"""Parts of a layer whose widths are chosen together, because one's time depends on the other's width."""

_Change = tuple[int, Part, int]
"""A layer's number, a part of it, and its width."""


class Candidates:
    """A model at any widths.

    Several processes work on it together: all of them call the same, and get the same. The statistics of a part are in
    the process that owns it, which predicts its losses and narrows it.

    Args:
        native: the original.
        model: its lossless conversion, which is not changed.
        family: its family.
        calibration: rows and moments.
        config: settings of the compression.
        progress: called while the model runs.
    """

    def __init__(
        self,
        native: PreTrainedModel,
        model: PreTrainedModel,
        family: Family,
        calibration: Calibration,
        config: CompressionConfig,
        progress: Progress,
    ) -> None:
        if not calibration.has_rows:
            raise CalibrationError(
                "Compression needs the rows of the calibration, so calibrate on text, images or batches, not on a "
                "callable."
            )
        self.native, self.model = native, model
        self.blocks = blocks_of(model, family)
        self._config = config
        self._progress = progress
        self.stacks = stacks_of(self.blocks)
        self._state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._narrowed: dict[_Change, Narrowed] = {}
        self._exchanged: set[_Change] = set()
        self._costs: dict[Unit, Costs] = {}
        self._linears: dict[str, nn.Linear] = {}
        self._owner = self._owners()
        statistics = collect(model, self.blocks, calibration.train, config.seed, self._owner, progress)
        self.tokens = min(sums.tokens for sums in statistics.values())
        problems = LayerProblems(native, calibration.moments, native.device)
        shared = any(layer.shares_values for layer in attention_layers(native))
        self.form: FormName = DEFAULT_FORM if config.params is not None and not shared else NATIVE_FORM
        self.parts: list[dict[Part, Narrowing]] = []
        for block in self.blocks:
            parts: dict[Part, Narrowing] = {}
            for attention in block.attention:
                layer, output = attention.layer(model), self._linear(attention.output)
                of_queries, of_values = attention.parts
                problem = problems[attention.name]
                parts[of_queries] = (
                    NarrowSharedKeys(attention, layer, problem, config.length)
                    if isinstance(problem, RotaryProblem) and problem.key_heads < layer.total_heads
                    else NarrowQueriesKeys(attention, layer, problem, self.form, config.length)
                )
                parts[of_values] = NarrowValues(attention, layer, output, statistics[attention.output], config.length)
            ups, down = [self._linear(name) for name in block.ups], self._linear(block.down)
            parts["feed-forward"] = NarrowFeedForward(block, ups, down, statistics[block.down], config.length)
            self.parts.append(parts)
        self._share_keys()
        self.held_out = HeldOut(native, self.model, self.blocks, calibration.held_out)

    def _owners(self) -> dict[str, int]:
        """The process that owns each projection of `Block.outputs`.

        For every part before it the model runs once on held-out rows, and to narrow the widest takes about as long.
        """
        inputs = {name: self._linear(name).in_features for block in self.blocks for name in block.outputs}
        runs = Counter(
            name for block in self.blocks for part, name in block.projections.items() if part in self._config.narrowed
        )
        widest = max(inputs.values())
        return dict(zip(inputs, owners([runs[name] + (inputs[name] / widest) ** 3 for name in inputs]), strict=True))

    def _owner_of(self, number: int, part: Part) -> int:
        """The process that owns a part of a layer: the projection after it."""
        return self._owner[self.blocks[number].projections[part]]

    def _share_keys(self) -> None:
        """Makes the keys of the model, which each head has for itself, those that the original's heads share."""
        shared = [part for own in self.parts for part in own.values() if isinstance(part, NarrowSharedKeys)]
        if not shared:
            return
        specs = {name: layer.spec for name, layer in collaborative_layers(self.model).items()}
        for part in shared:
            whole = part.narrow(part.widths[0])
            self._state |= whole.tensors
            specs[whole.attention] = replace(specs[whole.attention], **whole.spec)
        config = copy.deepcopy(self.model.config)
        config.collab_layers = [spec.to_dict() for spec in specs.values()]
        self.model = assemble(type(self.model), config, self._state, self.model, self._trainable)
        self._state = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        self._linears.clear()

    def build(self, widths: Widths) -> PreTrainedModel:
        """The model at some widths; it shares the weights that stay."""
        changes = [
            (number, part, width)
            for number, chosen in enumerate(widths)
            for part, width in (chosen or {}).items()
            if width != self.full[number][part]
        ]
        new = [change for change in changes if change not in self._exchanged]
        owner = [self._owner_of(number, part) for number, part, _ in new]
        made = divided(new, lambda own: [self._narrow(*change).to("cpu") for change in own], owner=owner)
        for change, narrowed in zip(new, made, strict=True):
            self._exchanged.add(change)
            self._narrowed.setdefault(change, narrowed.to(self.model.device))
        return self._built(widths)

    def _built(self, widths: Widths) -> PreTrainedModel:
        """The model at some widths, whose narrower parts this process has or owns."""
        state, neurons = dict(self._state), []
        specs: dict[str, AttentionSpec] = {}
        for number, chosen in enumerate(widths):
            block = self.blocks[number]
            if chosen is None:
                continue
            specs |= {attention.name: attention.layer(self.model).spec for attention in block.attention}
            count = self._linear(block.down).in_features
            for part, width in chosen.items():
                if width == self.full[number][part]:
                    continue
                narrowed = self._narrow(number, part, width)
                _remove(state, narrowed.removed)
                state |= narrowed.tensors
                if narrowed.attention:
                    specs[narrowed.attention] = replace(specs[narrowed.attention], **narrowed.spec)
                count = count if narrowed.neurons is None else narrowed.neurons
            neurons.append(count)
        config = copy.deepcopy(self.model.config)
        config.collab_layers = [spec.to_dict() for spec in specs.values()]
        config.collab_feed_forward = neurons
        there = [chosen is not None for chosen in widths]
        state = without_layers(state, config, self.blocks, there, self._by_layer)
        trainable = renumbered(self._trainable, self.blocks, there)
        built = assemble(type(self.model), config, state, self.model, trainable)
        crossing = [number for number, block in enumerate(self.blocks) if block.attention[-1].kind == "cross"]
        renumber_aligned_layers(built, [there[number] for number in crossing])
        return built

    @property
    def _trainable(self) -> dict[str, bool]:
        """Whether each parameter of the lossless conversion requires gradients: new factors, and others as before."""
        return {name: parameter.requires_grad for name, parameter in self.model.named_parameters()}

    @cached_property
    def full(self) -> tuple[dict[Part, int], ...]:
        """By layer, the original widths of its parts."""
        return tuple({part: narrowing.widths[0] for part, narrowing in own.items()} for own in self.parts)

    @cached_property
    def losses(self) -> list[dict[Part, dict[int, float]]]:
        """By layer, the predicted loss of every part at every width, as measured at about half its width."""
        changes = [(number, part) for number in self._numbers for part in self.changing[number]]
        owner = [self._owner_of(*change) for change in changes]
        measured = divided(changes, self._measured_losses, owner=owner)
        losses: list[dict[Part, dict[int, float]]] = [{} for _ in self.blocks]
        for (number, part), by_width in zip(changes, measured, strict=True):
            losses[number][part] = by_width
        return losses

    def _measured_losses(self, changes: Sequence[tuple[int, Part]]) -> list[dict[int, float]]:
        """The loss of parts, which this process owns, at every width, as `losses`."""
        losses = []
        self._progress("measuring widths", 0, len(changes))
        for number, part in changes:
            narrowing = self.parts[number][part]
            predicted = {width: narrowing.predicted(width) for width in narrowing.widths}
            width = _to_measure(predicted)
            loss = self._loss_with(number, self.full[number] | {part: width})
            scale = loss / predicted[width] if predicted[width] > 0 else 0.0
            losses.append({width: scale * each for width, each in predicted.items()})
            logger.info("layer %d, %s at %d: loss %.5f", number, part, width, loss)
            self._progress("measuring widths", len(losses), len(changes))
        return losses

    @cached_property
    def changing(self) -> list[list[Part]]:
        """By layer, the parts that may be narrower."""
        return [
            [
                part
                for part in self._config.narrowed
                if part in own
                and block.stack in self._config.stacks
                and not (self._config.native and block.width_name is None)
            ]
            for block, own in zip(self.blocks, self.parts, strict=True)
        ]

    @cached_property
    def losses_without(self) -> dict[int, float]:
        """The measured loss of dropping each layer that may be dropped, by number."""
        dropping = self._config.drop_layers != 0 and "layers" in self._config.only
        droppable = self.droppable if dropping else []
        return dict(zip(droppable, divided(droppable, self._measured_without), strict=True))

    def _loss_with(self, number: int, chosen: Mapping[Part, int] | None) -> float:
        """The loss of one layer at some widths, or dropped, while the others stay as they are."""
        widths = (*self.full[:number], chosen, *self.full[number + 1 :])
        return self.held_out.loss_of_change(self._built(widths), number)

    def _measured_without(self, numbers: Sequence[int]) -> list[float]:
        """The losses of dropping layers, each alone."""
        losses: list[float] = []
        for number in numbers:
            self._progress("measuring without layers", len(losses), len(numbers))
            losses.append(self._loss_with(number, None))
        return losses

    @cached_property
    def droppable(self) -> list[int]:
        """The layers that may be dropped, by number."""
        numbers = droppable(self.native, self.blocks)
        return [number for number in numbers if self.blocks[number].stack in self._config.stacks]

    @cached_property
    def _by_layer(self) -> list[dict[str, int]]:
        """By stack, the weights outside its layers that have as many entries for each of them."""
        by_layer = []
        for stack in self.stacks:
            number = next((number for number in stack if number in self.droppable), None)
            own = None if number is None else weights_by_layer(self.native, self.blocks, number)
            by_layer.append(own or {})
        return by_layer

    def curves(self, unit: Unit) -> list[list[Curve]]:
        """By layer, the cost and the predicted loss of its parts at every width."""
        costs = self.costs(unit)
        curves: list[list[Curve]] = []
        for number in self._numbers:
            losses = self.losses[number]
            groups = ({part: losses[part] for part in group if part in losses} for group in _TOGETHER)
            curves.append([costs.curve(number, group) for group in groups])
        return curves

    def costs(self, unit: Unit) -> Costs:
        """The costs of the layers at any widths."""
        if unit not in self._costs:
            self._costs[unit] = self._counted(unit) if unit != "seconds" else self._measured()
        return self._costs[unit]

    @cached_property
    def timed(self) -> Timed:
        """What time is measured at."""
        return Timed(self.native, self._config)

    def _counted(self, unit: Unit) -> Costs:
        def parts(number: int, widths: Mapping[Part, int]) -> list[tuple[Narrowing, int]]:
            return [(part, widths.get(name, part.widths[0])) for name, part in self.parts[number].items()]

        def flops(number: int, widths: Mapping[Part, int]) -> float:
            return sum(part.flops(width) for part, width in parts(number, widths)) * self.blocks[number].passes

        def parameters(number: int, widths: Mapping[Part, int]) -> float:  # normalizations and output biases stay
            return held[number] - sum(
                part.parameters(part.widths[0]) - part.parameters(width) for part, width in parts(number, widths)
            )

        def step_weights(number: int, widths: Mapping[Part, int]) -> float:
            if self.blocks[number].stack == "encoder":
                return 0.0
            absent = sum(part.parameters(part.widths[0]) for part in self.parts[number].values())
            read = sum(part.step_parameters(width) for part, width in parts(number, widths))
            return held[number] - absent + read

        held = [float(count_parameters(self.model.get_submodule(block.name))) for block in self.blocks]
        if unit == "params":
            return Costs(float(count_parameters(self.native)), float(count_parameters(self.model)), parameters)
        layer = flops if unit == "flops" else step_weights
        whole = sum(layer(number, {}) for number in self._numbers)
        return Costs(whole, whole, layer)

    def _measured(self) -> Costs:
        self._progress("measuring times", 0, None)
        parts = [
            {part: own[part] for part in changing} for own, changing in zip(self.parts, self.changing, strict=True)
        ]
        passes = [block.passes for block in self.blocks]
        times = LayerTimes(self.build, parts, passes, self.stacks, self.droppable, self.timed)
        return Costs(times.whole, times.full, times.layer)

    @property
    def _numbers(self) -> range:
        return range(len(self.blocks))

    def _linear(self, name: str) -> nn.Linear:
        if name not in self._linears:
            layer = as_linear(self.model.get_submodule(name))
            assert isinstance(layer, nn.Linear)
            self._linears[name] = layer
        return self._linears[name]

    def _narrow(self, number: int, part: Part, width: int) -> Narrowed:
        change = (number, part, width)
        if change not in self._narrowed:
            narrowed = self.parts[number][part].narrow(width)
            block = self.blocks[number]
            if part == "feed-forward" and isinstance(self.model.get_submodule(block.down), Conv1D):
                stored = {
                    name: tensor.T.contiguous() if tensor.ndim == 2 else tensor
                    for name, tensor in narrowed.tensors.items()
                }
                narrowed = replace(narrowed, tensors=stored)
            self._narrowed[change] = narrowed
        return self._narrowed[change]


def _remove(state: dict[str, Tensor], prefixes: tuple[str, ...]) -> None:
    """Removes the parameters whose names have one of the prefixes."""
    for name in [name for name in state if name.startswith(prefixes)]:
        del state[name]


def _to_measure(predicted: Mapping[int, float]) -> int:
    """The width closest to half of the original one; a smaller one where so much is predicted to lose nothing.

    Args:
        predicted: the loss at every width, falling.
    """
    full, *widths = predicted
    middle = min(widths, key=lambda width: abs(width - full / 2), default=full)
    least = 1e-3 * list(predicted.values())[-1]
    return next((width for width in widths if width <= middle and predicted[width] >= least), middle)
