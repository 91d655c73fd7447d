"""A model at any widths: builds it, and predicts what it loses from one measurement of every part."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition.options import DEFAULT_FORM, NATIVE_FORM, FormName
from ..errors import CalibrationError
from ..evaluation.compare import compare_outputs, outputs_on
from ..models.assembly import assemble
from ..models.families import Family
from ..models.inputs import longest_input, random_inputs
from ..models.layers import count_parameters
from ..planning.allocation import Costs, Curve, Widths
from ..planning.budget import Part, Unit
from ..progress import Progress
from ..reparametrization.model import LayerProblems
from .blocks import blocks_of
from .costs import LayerTimes
from .feed_forward import NarrowFeedForward
from .options import CompressionConfig
from .queries_keys import NarrowQueriesKeys
from .statistics import collect
from .values import NarrowValues
from .widths import Narrowed, Narrowing

logger = logging.getLogger(__name__)

_TOGETHER: tuple[tuple[Part, ...], ...] = (("queries-keys", "values"), ("feed-forward",))
"""Parts of a layer whose widths are chosen together, because one's time depends on the other's width."""

_ROWS = 8
"""Rows of the batch that time is measured on."""


class Candidates:
    """A model at any widths.

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
        self._held_out = calibration.held_out
        self._progress = progress
        self._state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._narrowed: dict[tuple[int, Part, int], Narrowed] = {}
        self._costs: dict[Unit, Costs] = {}
        statistics = collect(model, self.blocks, calibration.train, config.seed, progress)
        self.tokens = min(sums.tokens for sums in statistics.values())
        problems = LayerProblems(native, calibration.moments, native.device)
        self.form: FormName = DEFAULT_FORM if config.params is not None else NATIVE_FORM
        self.parts: list[dict[Part, Narrowing]] = []
        for block, problem in zip(self.blocks, problems.values(), strict=True):
            layer = block.attention_layer(model)
            output, down = map(self._linear, (block.output, block.down))
            ups = [self._linear(name) for name in block.ups]
            parts: dict[Part, Narrowing] = {
                "queries-keys": NarrowQueriesKeys(block, layer, problem, self.form, config.length),
                "values": NarrowValues(block, layer, output, statistics[block.output], config.length),
                "feed-forward": NarrowFeedForward(block, ups, down, statistics[block.down], config.length),
            }
            self.parts.append(parts)

    def build(self, widths: Widths) -> PreTrainedModel:
        """The model at some widths; it shares the weights that stay."""
        state, specs, neurons = dict(self._state), [], []
        kept = [number for number, chosen in enumerate(widths) if chosen is not None]
        for number, chosen in enumerate(widths):
            block = self.blocks[number]
            if chosen is None:
                _remove(state, (f"{block.name}.",))
                continue
            spec, count = block.attention_layer(self.model).spec, self._linear(block.down).in_features
            for part, width in chosen.items():
                if width == self.parts[number][part].widths[0]:
                    continue
                narrowed = self._narrow(number, part, width)
                _remove(state, narrowed.removed)
                state |= narrowed.tensors
                spec = replace(spec, **narrowed.spec)
                count = count if narrowed.neurons is None else narrowed.neurons
            specs.append(spec)
            neurons.append(count)
        config = copy.deepcopy(self.model.config)
        config.collab_layers = [spec.to_dict() for spec in specs]
        config.collab_feed_forward = neurons
        if len(kept) < len(widths):
            state = self._renumbered(state, kept)
            config.num_hidden_layers = len(kept)
            if len(getattr(config, "layer_types", None) or ()) == len(widths):
                config.layer_types = [config.layer_types[number] for number in kept]
            config.collab_dropped_layers = [number for number in range(len(widths)) if number not in kept]
        trainable = {name: parameter.requires_grad for name, parameter in self.native.named_parameters()}
        return assemble(type(self.model), config, state, self.model, trainable)

    @cached_property
    def full(self) -> tuple[dict[Part, int], ...]:
        """By layer, the original widths of its parts."""
        return tuple({part: narrowing.widths[0] for part, narrowing in own.items()} for own in self.parts)

    @cached_property
    def scales(self) -> list[dict[Part, float]]:
        """By layer, the measured loss of every part at about half its width, relative to what was predicted there."""
        scales: list[dict[Part, float]] = [{} for _ in self.blocks]
        changes = [(number, part) for number in self._numbers for part in self._config.narrowed]
        self._progress("measuring widths", 0, len(changes))
        for done, (number, part) in enumerate(changes, 1):
            narrowing = self.parts[number][part]
            width = _to_measure(narrowing)
            loss = self._loss(self._with(number, self.full[number] | {part: width}))
            predicted = narrowing.predicted(width)
            scales[number][part] = loss / predicted if predicted > 0 else 0.0
            logger.info("layer %d, %s at %d: loss %.5f", number, part, width, loss)
            self._progress("measuring widths", done, len(changes))
        return scales

    @cached_property
    def losses_without(self) -> dict[int, float]:
        """The measured loss of dropping each layer that may be dropped, by number."""
        dropping = self._config.drop_layers != 0 and "layers" in self._config.only
        droppable = self.droppable if dropping else []
        losses: dict[int, float] = {}
        for number in droppable:
            self._progress("measuring without layers", len(losses), len(droppable))
            losses[number] = self._loss(self._with(number, None))
        return losses

    @cached_property
    def droppable(self) -> list[int]:
        """The layers that may be dropped: those with weights of their own, and with what the last one has.

        The first layer of some models has more (T5: the bias of relative positions) or less (ModernBERT: no norm), and
        another one cannot take its place.
        """
        if len(self.blocks) == 1 or any(block.passes > 1 for block in self.blocks):
            return []
        names = [{name for name, _ in self.model.get_submodule(block.name).named_parameters()} for block in self.blocks]
        return [number for number, own in enumerate(names) if own == names[-1]]

    def curves(self, unit: Unit) -> list[list[Curve]]:
        """By layer, the cost and the predicted loss of its parts at every width."""
        costs = self.costs(unit)
        curves: list[list[Curve]] = []
        for number in self._numbers:
            losses: dict[Part, dict[int, float]] = {}
            for part, scale in self.scales[number].items():
                narrowing = self.parts[number][part]
                losses[part] = {width: scale * narrowing.predicted(width) for width in narrowing.widths}
            groups = ({part: losses[part] for part in group if part in losses} for group in _TOGETHER)
            curves.append([costs.curve(number, group) for group in groups])
        return curves

    def costs(self, unit: Unit) -> Costs:
        """The costs of the layers at any widths."""
        if unit not in self._costs:
            self._costs[unit] = self._counted(unit) if unit != "seconds" else self._measured()
        return self._costs[unit]

    def random_rows(self) -> dict[str, Tensor]:
        """The batch that time is measured on."""
        return random_inputs(self.native, _ROWS, min(self._config.length, longest_input(self.native)))

    def _counted(self, unit: Unit) -> Costs:
        def parts(number: int, widths: Mapping[Part, int]) -> list[tuple[Narrowing, int]]:
            return [(part, widths.get(name, part.widths[0])) for name, part in self.parts[number].items()]

        def flops(number: int, widths: Mapping[Part, int]) -> float:
            return sum(part.flops(width) for part, width in parts(number, widths)) * self.blocks[number].passes

        def parameters(number: int, widths: Mapping[Part, int]) -> float:  # normalizations and output biases stay
            before, after = (
                sum(part.parameters(width) for part, width in parts(number, chosen)) for chosen in ({}, widths)
            )
            return held[number] - before + after

        if unit == "flops":
            whole = sum(flops(number, {}) for number in self._numbers)
            return Costs(whole, whole, flops)
        held = [float(count_parameters(self.model.get_submodule(block.name))) for block in self.blocks]
        return Costs(float(count_parameters(self.native)), float(count_parameters(self.model)), parameters)

    def _measured(self) -> Costs:
        self._progress("measuring times", 0, None)
        parts = [{part: own[part] for part in self._config.narrowed} for own in self.parts]
        passes = [block.passes for block in self.blocks]
        times = LayerTimes(self.build, parts, passes, bool(self.droppable), self.native, self.random_rows())
        return Costs(times.whole, times.full, times.layer)

    @property
    def _numbers(self) -> range:
        return range(len(self.blocks))

    def _linear(self, name: str) -> nn.Linear:
        layer = self.model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        return layer

    def _narrow(self, number: int, part: Part, width: int) -> Narrowed:
        key = (number, part, width)
        if key not in self._narrowed:
            self._narrowed[key] = self.parts[number][part].narrow(width)
        return self._narrowed[key]

    def _with(self, number: int, chosen: Mapping[Part, int] | None) -> Widths:
        """The original widths but for one layer."""
        return (*self.full[:number], chosen, *self.full[number + 1 :])

    @cached_property
    def _expected(self) -> list[list]:
        return outputs_on(self.native, self.native, self._held_out)

    def loss(self, model: PreTrainedModel) -> float:
        """How far a model's answers are from the original's on held-out rows; 0 where they are the same."""
        agreed = compare_outputs(self._expected, outputs_on(self.native, model, self._held_out))
        if "kl" in agreed:
            return agreed["kl"]
        return agreed["absolute_difference"] if "absolute_difference" in agreed else 1 - agreed["embedding_cosine"]

    def _loss(self, widths: Widths) -> float:
        """The loss of the model at some widths."""
        return self.loss(self.build(widths))

    def _renumbered(self, state: Mapping[str, Tensor], kept: Sequence[int]) -> dict[str, Tensor]:
        """The weights under the names that they have in a model without the dropped layers."""
        places = {f"{self.blocks[old].name}.": f"{self.blocks[0].list_name}.{new}." for new, old in enumerate(kept)}
        renamed = {}
        for name, tensor in state.items():
            old = next((prefix for prefix in places if name.startswith(prefix)), "")
            renamed[places.get(old, "") + name[len(old) :]] = tensor
        return renamed


def _remove(state: dict[str, Tensor], prefixes: tuple[str, ...]) -> None:
    """Removes the parameters whose names have one of the prefixes."""
    for name in [name for name in state if name.startswith(prefixes)]:
        del state[name]


def _to_measure(narrowing: Narrowing) -> int:
    """The width closest to half of the original one; a smaller one where so much is predicted to lose nothing."""
    full, *widths = narrowing.widths
    middle = min(widths, key=lambda width: abs(width - full / 2), default=full)
    least = 1e-3 * narrowing.predicted(narrowing.widths[-1])
    return next((width for width in widths if width <= middle and narrowing.predicted(width) >= least), middle)
