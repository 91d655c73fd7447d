"""One pass of a model over calibration inputs, forward and back, that collects every attention layer's moments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..io.options import Progress, no_progress
from ..models.answers import answers_of
from ..models.families import Family
from ..models.states import eager_attention, evaluating, frozen
from ..reparametrization.moments import Accumulator, LayerMoments, pooled


@dataclass
class _Pass:
    """What one attention layer did in one call of the model; a layer that is used many times did it many times."""

    name: str
    queries: Tensor  # (B, T, D_q)
    keys: Tensor  # (B, S, D_k)
    weights: Tensor  # (B, H, T, S), part of the graph

    @property
    def read(self) -> tuple[Tensor, ...]:
        """What goes into the moments, each tensor once."""
        inputs = (self.queries,) if self.keys is self.queries else (self.queries, self.keys)
        return (*inputs, self.weights)


class Collector:
    """Watches a model while it runs, and learns from every call.

    Args:
        model: a native model; left as it was.
        family: its family.
        seed: of the random directions in the output.
        period: every how-manyth call is held out, unless `holding` says.

    Attributes:
        holding: whether the next calls are held out; None to go by the period.
    """

    def __init__(self, model: PreTrainedModel, family: Family, seed: int, period: int) -> None:
        self.model = model
        self.period = period
        self.holding: bool | None = None
        self._layers = family.attention_layers(model)
        self._cross = {name: family.is_cross_attention(layer) for name, layer in self._layers.items()}
        # Before the first pass, so that they do not end up between its activations and fragment the memory.
        self._sums: dict[bool, dict[str, list[Accumulator]]] = {
            hold: {name: [self._accumulator(layer, family)] for name, layer in self._layers.items()}
            for hold in (False, True)
        }
        self._passes: list[_Pass] = []
        self._mask: Tensor | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._batches = 0

    @contextlib.contextmanager
    def watching(self, progress: Progress = no_progress, total: int | None = None) -> Iterator[None]:
        """Learns from every call of the model inside the context.

        The model has plain attention, no dropout and frozen weights in it, all undone afterwards.

        Args:
            progress: called after every call of the model.
            total: how many there will be, if it is known.
        """

        def learn(module: nn.Module, args: tuple, output: Any) -> None:
            self._learn(output)
            progress("calibrating", self._batches, total)

        model = self.model
        handles = [model.register_forward_pre_hook(self._on_call, with_kwargs=True), model.register_forward_hook(learn)]
        for name, layer in self._layers.items():
            handles.append(layer.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(layer.register_forward_hook(self._after(name), with_kwargs=True))
        try:
            with evaluating(model), eager_attention(model), frozen(model), torch.enable_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._passes.clear()

    def finish(self) -> tuple[dict[str, LayerMoments], dict[str, LayerMoments] | None]:
        """The moments of every attention layer by module name, and those of the held-out calls, if there were any.

        A layer whose weights serve many passes has their pooled moments. The sums are used up.

        Raises:
            CalibrationError: if there was nothing to learn from.
        """
        kept, held = self._sums[False], self._sums[True]
        missing = [name for name, sums in kept.items() if not sums[0].tokens]
        if len(missing) == len(kept):
            raise CalibrationError("There is no calibration data: the model was not called once.")
        if missing:
            raise CalibrationError(f"Calibration never used {', '.join(sorted(missing))}.")
        moments = {name: pooled([one.finish() for one in kept.pop(name)]) for name in self._layers}
        if not all(sums[0].tokens for sums in held.values()):
            return moments, None
        return moments, {name: pooled([one.finish() for one in held.pop(name)]) for name in self._layers}

    def _accumulator(self, layer: nn.Module, family: Family) -> Accumulator:
        names, config = family.names(layer), self.model.config
        query, key = getattr(layer, names["query"]), getattr(layer, names["key"])
        return Accumulator(query.in_features, key.in_features, config.num_attention_heads, self.model.device)

    def _learn(self, output: Any) -> None:
        self._batches += 1
        for one in self._passes:
            if not all(_finite(value) for value in one.read):
                raise CalibrationError(
                    f"Activations of {one.name} are NaN or infinite in batch {self._batches}, so there is nothing to "
                    "calibrate on. Check the model in its dtype, or give other data."
                )
        targets = _directions(self.model, output, self._mask, self._generator)
        if not targets or not self._passes:
            raise CalibrationError("The model gave no output or ran no attention layer in calibration.")
        goal = torch.stack([(value * direction).sum() for value, direction in targets]).sum()
        if not goal.requires_grad:
            raise CalibrationError(
                "The model was run without gradients, which calibration needs: run it outside torch.no_grad()."
            )
        gradients = torch.autograd.grad(goal, [one.weights for one in self._passes], allow_unused=True)
        with torch.no_grad():
            times: dict[str, int] = {}
            for one, gradient in zip(self._passes, gradients, strict=True):
                number = times[one.name] = times.get(one.name, -1) + 1
                if gradient is None:  # nothing of this pass reaches the output
                    gradient = torch.zeros_like(one.weights)
                self._add(one, number, gradient.float())
        self._passes.clear()

    def _add(self, one: _Pass, number: int, gradient: Tensor) -> None:
        queries, keys, weights = one.queries.detach().float(), one.keys.detach().float(), one.weights.detach().float()
        # Through the softmax: ∂/∂s = p (∂/∂p - Σ p ∂/∂p).
        scores = weights * (gradient - (weights * gradient).sum(dim=-1, keepdim=True))  # (B, H, T, S)
        tokens = queries.shape[0] * queries.shape[1]
        if self._mask is not None and self._mask.numel() == tokens:
            mask = self._mask.reshape(queries.shape[:2]).to(scores)
            scores, tokens = scores * mask[:, None, :, None], int(mask.sum())
        sums = self._sums[self._batches % self.period == 0 if self.holding is None else self.holding]
        accumulators = sums[one.name]
        if number == len(accumulators):
            accumulators.append(accumulators[0].another())
        accumulators[number].add(queries, keys, scores, tokens, self._generator)

    def _on_call(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        self._mask = mask if isinstance(mask, Tensor) and mask.ndim in (2, 3) else None
        self._passes.clear()
        return args, kwargs | {"output_attentions": True}  # some families give weights only when asked

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden_states = args[0] if args else kwargs["hidden_states"]
        if not hidden_states.requires_grad:
            hidden_states.requires_grad_(True)  # the graph starts at the first attention layer

    def _after(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple) -> None:
            queries = args[0] if args else kwargs["hidden_states"]
            keys = queries
            if self._cross[name]:
                keys = args[1] if len(args) > 1 else kwargs["encoder_hidden_states"]
            self._passes.append(_Pass(name, queries, keys, output[1]))

        return record


def _finite(value: Tensor) -> bool:
    """Whether no entry is NaN or infinite; a fraction of the time of `isfinite`, which makes tensors of its own."""
    return all(bool(bound.isfinite()) for bound in value.detach().aminmax())


def _directions(
    model: PreTrainedModel, output: Any, mask: Tensor | None, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """The outputs that count, each with the direction in which its change is looked at."""
    return [(answer.values, answer.direction(generator)) for answer in answers_of(model, output, mask)]
