"""Collects the moments of every attention layer's inputs while a model runs on calibration data."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..io.failures import writing
from ..models.inputs import with_targets
from ..models.layers import AttentionLayer, native_layers
from ..models.outputs import outputs_of
from ..models.padding import output_mask
from ..models.recording import LayerPass, recording
from ..models.sharded import is_sharded
from ..models.states import eager_attention, evaluating, frozen
from ..processes import gathered, owners, rank, seed_of_batch
from ..progress import Progress, no_progress
from ..reparametrization.moments import (
    Accumulator,
    DisentangledAccumulator,
    LayerMoments,
    RotaryAccumulator,
    pooled,
)


class Collector:
    """Collects moments from every call of a model.

    Args:
        model: a native model, which is not changed.
        seed: random seed of the directions in the output.
        period: one call in this many is held out, unless `holding` is set.
        run: the same model as it is run, if that is a sharded copy. Its processes then add up the sums of a layer after
            every call, in the process that owns the layer, so that none has the sums of all layers.
        scratch: a folder to keep the sums in, of a model on a CPU, in files that are mapped into memory; None for none.

    Attributes:
        holding: whether the next calls are held out; None to use `period`.
        number: number of the next call, from 1, which its random draws depend on; None to count the calls.
        counting: whether the next calls count; a process that has nothing left to do runs the model all the same.
        owner: the process that has the sums of a layer, by the layer's name; empty if each has its own sums of all.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        seed: int,
        period: int,
        run: PreTrainedModel | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.model = model if run is None else run
        self.period = period
        self.holding: bool | None = None
        self.number: int | None = None
        self.counting = True
        self._seed = seed
        self._layers = native_layers(self.model)
        # The widths are those of whole weights.
        whole = native_layers(model)
        self._empty = {name: functools.partial(_accumulator, model, layer) for name, layer in whole.items()}
        self.owner = owners_of_layers(model) if is_sharded(self.model) else {}
        own = [name for name in self._layers if self.owner.get(name, rank()) == rank()]
        # Allocated before the first pass, so that they do not fragment the memory of its activations.
        self._sums: dict[bool, dict[str, list[Accumulator]]] = {
            hold: {name: [self._empty[name]()] for name in own} for hold in (False, True)
        }
        if scratch is not None and model.device.type == "cpu":
            with writing(str(scratch), "Nothing was written."):
                folder = Path(tempfile.mkdtemp(dir=scratch))  # of this process and this calibration
                every = itertools.chain.from_iterable(part.values() for part in self._sums.values())
                for number, (sums,) in enumerate(every):
                    sums.kept_in(folder / str(number))
        self._passes: list[LayerPass] = []
        self._given: dict[str, Any] = {}  # to the model
        self._generator = torch.Generator()
        self._calls = 0

    @contextlib.contextmanager
    def watching(self, progress: Progress = no_progress, total: int | None = None) -> Iterator[None]:
        """Collects moments from every call of the model inside the context.

        Inside it the model has eager attention, no dropout and frozen weights.

        Args:
            progress: progress callback, called after every call of the model.
            total: number of calls, if it is known.
        """

        def learn(module: nn.Module, args: tuple, output: Any) -> None:
            self._calls += 1
            self._learn(output, self._calls if self.number is None else self.number)
            progress("calibrating", self._calls, total)

        model = self.model
        progress("calibrating", 0, total)
        passes = recording(self._layers.values(), self._passes.append, "weights", graph=True)
        before = model.register_forward_pre_hook(self._on_call, with_kwargs=True)
        after = model.register_forward_hook(learn)
        try:
            with before, after, passes, evaluating(model), eager_attention(model), frozen(model), torch.enable_grad():
                yield
        finally:
            self._passes.clear()

    def add_other_processes(self) -> None:
        """Adds the sums of the other processes, which all call this, layer by layer; if they are not yet in."""
        if self.owner:
            return
        own = {(hold, name): len(sums) for hold in self._sums for name, sums in self._sums[hold].items()}
        everywhere = gathered(own)
        for hold, by_layer in self._sums.items():
            for name, sums in by_layer.items():
                passes = max(counts[hold, name] for counts in everywhere)
                sums += [sums[0].another() for _ in range(passes - len(sums))]  # this process had no such batch
                for accumulator in sums:
                    accumulator.add_other_processes()

    def finish(self) -> tuple[dict[str, LayerMoments], dict[str, LayerMoments] | None]:
        """The moments of every attention layer by module name, and those of the held-out calls, if there were any.

        They are pooled over the passes of a layer, and reuse the memory of the sums. Where layers have owners, they are
        those of the layers that this process owns.

        Raises:
            CalibrationError: if the model, or one of its attention layers, was never called.
        """
        kept, held = self._sums[False], self._sums[True]
        missing = [name for name, sums in kept.items() if not sums[0].tokens]
        if missing and len(missing) == len(kept):
            raise CalibrationError("There is no calibration data: the model was never called.")
        if missing:
            raise CalibrationError(f"Calibration never called {', '.join(sorted(missing))}.")
        moments = {name: _finished(kept.pop(name)) for name in list(kept)}
        if not all(sums[0].tokens for sums in held.values()):
            return moments, None
        return moments, {name: _finished(held.pop(name)) for name in list(held)}

    def _learn(self, output: Any, number: int) -> None:
        """Adds one call; its draws depend on the seed and its number, not on what was called before it, or where."""
        self._generator.manual_seed(seed_of_batch(self._seed, number))
        hold = number % self.period == 0 if self.holding is None else self.holding
        for layer_pass in self._passes:
            read = {layer_pass.queries, layer_pass.keys, layer_pass.weights}  # each tensor once
            if not all(map(_finite, read)):
                raise CalibrationError(
                    f"Activations of {layer_pass.layer.name} are NaN or infinite in batch {number}, so "
                    "calibration is impossible. Check the model in its dtype, or use other data."
                )
        targets = _directions(self.model, output, output_mask(self._given), self._generator)
        if not targets or not self._passes:
            raise CalibrationError("The model returned no output or called no attention layer in calibration.")
        objective = torch.stack([(value * direction).sum() for value, direction in targets]).sum()
        if not objective.requires_grad:
            raise CalibrationError(
                f"The output of {type(self.model).__name__} does not depend on its attention layers, so there is "
                "nothing to calibrate. Use another head, or no calibration."
                if torch.is_grad_enabled()
                else "The model was run without gradients, which calibration needs: run it outside torch.no_grad()."
            )
        gradients = torch.autograd.grad(
            objective, [layer_pass.weights for layer_pass in self._passes], allow_unused=True
        )
        with torch.no_grad():
            times: Counter[str] = Counter()
            for layer_pass, gradient in zip(self._passes, gradients, strict=True):
                if gradient is None:  # the output does not depend on this pass
                    gradient = torch.zeros_like(layer_pass.weights)
                self._add(layer_pass, self._sums[hold], times[layer_pass.layer.name], gradient.float())
                times[layer_pass.layer.name] += 1
        self._passes.clear()

    def _add(self, layer_pass: LayerPass, sums: dict[str, list[Accumulator]], number: int, gradient: Tensor) -> None:
        """Adds to the sums the `number`-th pass of a layer in this call, with the gradient by its attention weights."""
        queries, keys = layer_pass.queries.detach().float(), layer_pass.keys.detach().float()
        weights = layer_pass.weights.detach().float()
        # Through the softmax: ∂/∂s = p (∂/∂p - Σ p ∂/∂p).
        scores = weights * (gradient - (weights * gradient).sum(dim=-1, keepdim=True))  # (B, H, T, S)
        tokens = queries.shape[0] * queries.shape[1]
        seen = layer_pass.seen(self._given)
        if seen is not None:
            scores, tokens = scores * seen[:, None, :, None].to(scores), int(seen.sum())
        name = layer_pass.layer.name
        owner = self.owner.get(name)
        added = self._of_pass(sums, name, number) if owner is None else self._empty[name]()
        if self.counting:
            added.add(queries, keys, scores, tokens, self._generator, layer_pass.positions)
        if owner is not None:
            added.add_other_processes(owner)
            if owner == rank():
                self._of_pass(sums, name, number).merge(added)

    def _of_pass(self, sums: dict[str, list[Accumulator]], name: str, number: int) -> Accumulator:
        """The sums of the `number`-th pass of a layer."""
        if number == len(sums[name]):
            sums[name].append(sums[name][0].another())
        return sums[name][number]

    def _on_call(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        given = bound | bound.get("kwargs", {})  # by name, however it was passed
        self._given = with_targets(self.model, {name: value for name, value in given.items() if value is not None})
        self._passes.clear()
        return args, kwargs | {"output_attentions": True}  # some families return weights only on request


def bytes_of_sums(model: PreTrainedModel) -> int:
    """Bytes of the largest sums of a calibration: of queries and keys, fitted and held out, in float64."""
    layers = native_layers(model).values()
    widths = [layer.projection(part).in_features for layer in layers for part in ("query", "key")]
    return 2 * 8 * sum(width**2 for width in widths)


def owners_of_layers(model: PreTrainedModel) -> dict[str, int]:
    """The process that solves each native attention layer, by its name: solving takes the cube of its width."""
    layers = native_layers(model)
    return dict(zip(layers, owners([layer.full_rank**3 for layer in layers.values()]), strict=True))


def _accumulator(model: PreTrainedModel, layer: AttentionLayer) -> Accumulator:
    """Empty sums of a layer of a model."""
    query, key = layer.projection("query"), layer.projection("key")
    if layer.rotary:
        width = query.in_features + (query.bias is not None or key.bias is not None)
        return RotaryAccumulator(width, width, layer.total, model.device)
    shape = query.in_features, key.in_features, layer.total, model.device
    terms = layer.positions
    return Accumulator(*shape) if terms is None else DisentangledAccumulator(*shape, terms)


def _finished(sums: list[Accumulator]) -> LayerMoments:
    """The moments of a layer, pooled over its passes."""
    return pooled([accumulator.finish() for accumulator in sums])


def _finite(value: Tensor) -> bool:
    """Whether no entry is NaN or infinite; much faster than `isfinite`, which allocates a tensor of that size."""
    return all(bool(bound.isfinite()) for bound in value.detach().aminmax())


def _directions(
    model: PreTrainedModel, returned: Any, mask: Tensor | None, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """The model's outputs, each with a random direction to measure its change along."""
    return [(output.values, output.direction(generator)) for output in outputs_of(model, returned, mask)]
