"""Collects the moments of every attention layer's inputs while a model runs on calibration data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..models.answers import answers_of
from ..models.families import Family, arguments_of
from ..models.inputs import answer_mask, query_mask, with_targets
from ..models.states import eager_attention, evaluating, frozen
from ..progress import Progress, no_progress
from ..reparametrization.moments import (
    Accumulator,
    DisentangledAccumulator,
    LayerMoments,
    RotaryAccumulator,
    pooled,
)


@dataclass
class _Pass:
    """Inputs and attention weights of one attention layer in one pass; a call of the model may have several."""

    name: str
    queries: Tensor  # (B, T, D_q)
    keys: Tensor  # (B, S, D_k)
    weights: Tensor  # (B, H, T, S), part of the graph
    positions: Any  # as from `Family.positions_input`

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The tensors that the moments are computed from, each once."""
        inputs = (self.queries,) if self.keys is self.queries else (self.queries, self.keys)
        return (*inputs, self.weights)


class Collector:
    """Collects moments from every call of a model.

    Args:
        model: a native model, which is not changed.
        family: its family.
        seed: random seed of the directions in the output.
        period: one call in this many is held out, unless `holding` is set.

    Attributes:
        holding: whether the next calls are held out; None to use `period`.
    """

    def __init__(self, model: PreTrainedModel, family: Family, seed: int, period: int) -> None:
        self.model = model
        self.period = period
        self.holding: bool | None = None
        self._family = family
        self._layers = family.attention_layers(model)
        self._kinds = {name: family.kind(layer) for name, layer in self._layers.items()}
        self._weights = {name: family.weights_index(layer) for name, layer in self._layers.items()}
        # Allocated before the first pass, so that they do not fragment the memory of its activations.
        self._sums: dict[bool, dict[str, list[Accumulator]]] = {
            hold: {name: [self._accumulator(layer, family)] for name, layer in self._layers.items()}
            for hold in (False, True)
        }
        self._passes: list[_Pass] = []
        self._given: dict[str, Any] = {}  # to the model
        self._generator = torch.Generator().manual_seed(seed)
        self._batches = 0

    @contextlib.contextmanager
    def watching(self, progress: Progress = no_progress, total: int | None = None) -> Iterator[None]:
        """Collects moments from every call of the model inside the context.

        Inside it the model has eager attention, no dropout and frozen weights.

        Args:
            progress: progress callback, called after every call of the model.
            total: number of calls, if it is known.
        """

        def learn(module: nn.Module, args: tuple, output: Any) -> None:
            self._learn(output)
            progress("calibrating", self._batches, total)

        model = self.model
        handles = [model.register_forward_pre_hook(self._on_call, with_kwargs=True), model.register_forward_hook(learn)]
        for name, layer in self._layers.items():
            handles.append(layer.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(layer.register_forward_hook(self._after(name), with_kwargs=True))
        progress("calibrating", 0, total)
        try:
            with evaluating(model), eager_attention(model), frozen(model), torch.enable_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._passes.clear()

    def finish(self) -> tuple[dict[str, LayerMoments], dict[str, LayerMoments] | None]:
        """The moments of every attention layer by module name, and those of the held-out calls, if there were any.

        They are pooled over the passes of a layer, and reuse the memory of the sums.

        Raises:
            CalibrationError: if the model, or one of its attention layers, was never called.
        """
        kept, held = self._sums[False], self._sums[True]
        missing = [name for name, sums in kept.items() if not sums[0].tokens]
        if len(missing) == len(kept):
            raise CalibrationError("There is no calibration data: the model was never called.")
        if missing:
            raise CalibrationError(f"Calibration never called {', '.join(sorted(missing))}.")
        moments = {name: _finished(kept.pop(name)) for name in self._layers}
        if not all(sums[0].tokens for sums in held.values()):
            return moments, None
        return moments, {name: _finished(held.pop(name)) for name in self._layers}

    def _accumulator(self, layer: nn.Module, family: Family) -> Accumulator:
        query, key = (family.projection(layer, role) for role in ("query", "key"))
        if family.is_rotary(layer):
            width = query.in_features + (query.bias is not None or key.bias is not None)
            return RotaryAccumulator(width, width, family.num_heads(layer), self.model.device)
        shape = query.in_features, key.in_features, family.num_heads(layer), self.model.device
        terms = family.position_terms(layer)
        return Accumulator(*shape) if terms is None else DisentangledAccumulator(*shape, terms)

    def _learn(self, output: Any) -> None:
        self._batches += 1
        for layer_pass in self._passes:
            if not all(_finite(value) for value in layer_pass.read):
                raise CalibrationError(
                    f"Activations of {layer_pass.name} are NaN or infinite in batch {self._batches}, so calibration is "
                    "impossible. Check the model in its dtype, or use other data."
                )
        targets = _directions(self.model, output, _mask(answer_mask(self._given)), self._generator)
        if not targets or not self._passes:
            raise CalibrationError("The model returned no output or called no attention layer in calibration.")
        objective = torch.stack([(value * direction).sum() for value, direction in targets]).sum()
        if not objective.requires_grad:
            raise CalibrationError(
                "The model was run without gradients, which calibration needs: run it outside torch.no_grad()."
            )
        gradients = torch.autograd.grad(
            objective, [layer_pass.weights for layer_pass in self._passes], allow_unused=True
        )
        with torch.no_grad():
            times: dict[str, int] = {}
            for layer_pass, gradient in zip(self._passes, gradients, strict=True):
                number = times[layer_pass.name] = times.get(layer_pass.name, -1) + 1
                if gradient is None:  # the output does not depend on this pass
                    gradient = torch.zeros_like(layer_pass.weights)
                self._add(layer_pass, number, gradient.float())
        self._passes.clear()

    def _add(self, layer_pass: _Pass, number: int, gradient: Tensor) -> None:
        """Adds the `number`-th pass of a layer in this call, with the gradient by its attention weights."""
        queries, keys = layer_pass.queries.detach().float(), layer_pass.keys.detach().float()
        weights = layer_pass.weights.detach().float()
        # Through the softmax: ∂/∂s = p (∂/∂p - Σ p ∂/∂p).
        scores = weights * (gradient - (weights * gradient).sum(dim=-1, keepdim=True))  # (B, H, T, S)
        tokens = queries.shape[0] * queries.shape[1]
        mask = _mask(query_mask(self._given, self._kinds[layer_pass.name]))
        if mask is not None and mask.numel() == tokens:
            mask = mask.reshape(queries.shape[:2]).to(scores)
            scores, tokens = scores * mask[:, None, :, None], int(mask.sum())
        sums = self._sums[self._batches % self.period == 0 if self.holding is None else self.holding]
        accumulators = sums[layer_pass.name]
        if number == len(accumulators):
            accumulators.append(accumulators[0].another())
        accumulators[number].add(queries, keys, scores, tokens, self._generator, layer_pass.positions)

    def _on_call(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        self._given = with_targets(self.model, kwargs)
        self._passes.clear()
        return args, kwargs | {"output_attentions": True}  # some families return weights only on request

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden_states = args[0] if args else kwargs["hidden_states"]
        if not hidden_states.requires_grad:
            hidden_states.requires_grad_(True)  # the graph starts at the first attention layer

    def _after(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> None:
            given = arguments_of(module, args, kwargs)
            keys = self._family.keys_input(module, given)
            positions = self._family.positions_input(module, given)
            self._passes.append(_Pass(name, given["hidden_states"], keys, output[self._weights[name]], positions))

        return record


def _mask(mask: Any) -> Tensor | None:
    """A mask by token, or by token of each choice; None for others."""
    return mask if isinstance(mask, Tensor) and mask.ndim in (2, 3) else None


def _finished(sums: list[Accumulator]) -> LayerMoments:
    """The moments of a layer, pooled over its passes."""
    return pooled([accumulator.finish() for accumulator in sums])


def _finite(value: Tensor) -> bool:
    """Whether no entry is NaN or infinite; much faster than `isfinite`, which allocates a tensor of that size."""
    return all(bool(bound.isfinite()) for bound in value.detach().aminmax())


def _directions(
    model: PreTrainedModel, output: Any, mask: Tensor | None, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """The model's answers, each with a random direction to measure its change along."""
    return [(answer.values, answer.direction(generator)) for answer in answers_of(model, output, mask)]
