"""Refinement: every converted attention layer is trained separately, on the original's inputs to it.

A conversion solves each layer for its scores. The rest of the model depends on the layer's output
o = [z_1 … z_H] W_O, so the new factors are trained for it: Adam on the relative squared error ‖(ẑ - z) W_O‖²/‖z W_O‖²,
the denominator about the mean, over tokens that are not padding. Values and W_O are the original's. No gradients flow
through the feed-forward layers or between layers, so running the original costs more than training. Its activations on
the rows of a few steps are therefore kept and used several times, which bounds the memory for any number of rows.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..data.mixture import hold_out
from ..decomposition import form_named
from ..errors import ConfigurationError, DataError, NotConvertedError
from ..evaluation.compare import check_comparable
from ..io.checkpoint import Checkpoint
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_native import as_linear
from ..models.families import collaborative_layers, require_family
from ..models.layers import FACTORS, AttentionLayer
from ..models.positions import with_positions_of
from ..models.states import attending_by, evaluating
from ..processes import from_main, gathered, processes, summed
from ..progress import Progress, no_progress
from ..steps.conversion import LayerRefinement, Refinement
from .observe import LayerExample, Observer, count_rows, count_tokens, micro_batches, own_rows, recordings
from .options import RefineOptions

logger = logging.getLogger(__name__)

Accept = Callable[[str, CollaborativeAttention], bool]

_PERIOD = 8  # one batch in this many is held out where none are given
_WARM_UP = 10  # steps
_BETAS = (0.9, 0.99)
_EXACT = 1e-9  # relative squared errors below this are rounding
_ALIKE = 1e-6  # relative to the mean square, a spread below this is rounding


def refine(
    checkpoint: Checkpoint | PreTrainedModel,
    original: Checkpoint | PreTrainedModel,
    batches: Sequence[Batch],
    held_out: Sequence[Batch] | None = None,
    *,
    options: RefineOptions | None = None,
    accept: Accept | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Trains the new factors of every layer, in place, so that its attention output comes closer to the original's.

    A layer keeps its new weights only if its error on the held-out batches fell. Nothing else in either model changes.
    Computes in float32 whatever the dtype of the models. Several processes, which all call this, divide the rows of
    every step, and all get the same layers.

    Args:
        checkpoint: the converted model.
        original: the model that it was converted from.
        batches: batches to train on, keyword arguments of the original.
        held_out: batches to evaluate on; None to hold out every eighth of `batches`.
        options: settings.
        accept: called with the name of a layer whose error fell, and a copy with the new weights in float32; if it
            returns False, the layer is left unchanged. None to accept all.
        progress: progress callback, called after every step.

    Returns:
        The model, with a `Refinement` as its report: the errors of every layer before and after.

    Raises:
        ConfigurationError: if the models do not fit together, or the converted model's values were changed.
        NotConvertedError: if the model is not a converted one.
        DataError: if there is nothing to train or to evaluate on.
    """
    options = options or RefineOptions()
    start = time.perf_counter()
    checkpoint, original = Checkpoint.of(checkpoint), Checkpoint.of(original).model
    model = checkpoint.model
    layers = collaborative_layers(model)
    if not layers:
        raise NotConvertedError("The model has no collaborative attention, so there is nothing to refine.")
    check_comparable(model, original)
    original = with_positions_of(original, model)
    if options.steps == 0:
        return checkpoint.then(Refinement({}, asdict(options), 0.0))
    train, held_out = _divided(batches, held_out)
    require_family(original.config)
    watch = Observer(original)
    learners = {name: _Learner(layer, watch.layers[name]) for name, layer in layers.items() if layer.heads}
    with torch.inference_mode(False), attending_by(original, _implementation(original)), evaluating(original):
        held_out = micro_batches(held_out)
        before = _measure(watch, learners, held_out)
        trained = {name: learner for name, learner in learners.items() if before[name] > _EXACT}
        _train(watch, trained, micro_batches(train), options, progress)
        _agree_on_weights(trained.values())
        for learner in trained.values():
            learner.round()
        after = before | _measure(watch, trained, held_out)  # unchanged for layers that are exact
    errors = {name: (before[name], after[name]) for name in learners}
    results = from_main(lambda: {name: _judge(name, learners[name], *pair, accept) for name, pair in errors.items()})
    for name, result in results.items():
        if result.kept:
            learners[name].store(layers[name])
    return checkpoint.then(Refinement(results, asdict(options), time.perf_counter() - start))


def _divided(batches: Sequence[Batch], held_out: Sequence[Batch] | None) -> tuple[Sequence[Batch], Sequence[Batch]]:
    """Batches to train and to evaluate on."""
    if held_out is None and batches:
        batches, held_out = hold_out(list(batches), _PERIOD)
    if not batches or not held_out:
        raise DataError("Refinement needs at least two batches, one of them to hold out.")
    return batches, held_out


def _judge(name: str, learner: _Learner, before: float, after: float, accept: Accept | None) -> LayerRefinement:
    """A layer keeps the trained weights if its error fell and `accept` agrees."""
    kept = after < before and (accept is None or accept(name, learner.layer))
    logger.info("%s: output error %.5f, refined %.5f%s", name, before, after, "" if kept else ", undone")
    return LayerRefinement(before, after, kept)


def _agree_on_weights(learners: Iterable[_Learner]) -> None:
    """Gives all processes the main one's factors: two processors may round the same steps differently."""
    if processes() > 1:
        parameters = [parameter for learner in learners for parameter in learner.parameters]
        with torch.no_grad():
            for parameter, value in zip(
                parameters, from_main(lambda: [each.detach().cpu() for each in parameters]), strict=True
            ):
                parameter.copy_(value)


def _implementation(model: PreTrainedModel) -> str:
    """``sdpa``, whose masks every collaborative layer accepts, unless the config asks for attention weights."""
    return "eager" if model.config.output_attentions or not model._supports_sdpa else "sdpa"


class _Errors:
    """Sums of squared errors of one layer in one pass, and of the squares that they are relative to.

    Args:
        gram: W_O W_Oᵀ, (H·d, H·d).
    """

    def __init__(self, gram: Tensor) -> None:
        self._gram = gram
        self._error = self._square = 0.0
        self._total = gram.new_zeros(len(gram), dtype=torch.float64)  # Σ z, (H·d,)
        self._tokens = 0

    def add(self, difference: Tensor, context: Tensor, tokens: int) -> None:
        """Adds ẑ - z and z, (B, T, H·d) each and zero for padding."""
        self._error += float(((difference @ self._gram) * difference).sum(dtype=torch.float64))
        self._square += float(((context @ self._gram) * context).sum(dtype=torch.float64))
        self._total += context.sum(dim=(0, 1), dtype=torch.float64)
        self._tokens += tokens

    def add_other_processes(self) -> None:
        """Adds what the other processes have, which all call this."""
        sums = torch.cat([self._total, self._total.new_tensor([self._error, self._square, self._tokens])])
        *_, error, square, tokens = summed(sums).tolist()
        self._total = sums[:-3]
        self._error, self._square, self._tokens = error, square, int(tokens)

    @property
    def spread(self) -> float:
        """Mean ‖(z - z̄) W_O‖² of a token, or mean ‖z W_O‖² if all tokens are equal."""
        mean = self._total / self._tokens  # (H·d,)
        square = self._square / self._tokens
        about_mean = square - float(mean @ self._gram.double() @ mean)
        return about_mean if about_mean > _ALIKE * square else square

    @property
    def relative(self) -> float:
        """Mean ‖(ẑ - z) W_O‖² relative to the spread."""
        return self._error / self._tokens / self.spread if self.spread > 0 else 0.0


class _Learner:
    """A copy of one layer in float32, to train its factors.

    Args:
        layer: the layer of the converted model, which is not changed.
        native: the original's layer.

    Raises:
        ConfigurationError: if the layer's values are not those of the original.
    """

    def __init__(self, layer: CollaborativeAttention, native: AttentionLayer) -> None:
        self.dtype = layer.query.weight.dtype
        output = as_linear(native.output).weight.detach()
        self.layer = copy.deepcopy(layer).to(output.device).float().eval().requires_grad_(False)
        self.layer.config._attn_implementation_internal = "sdpa"
        self._shape = (layer.total_heads, layer.attention_head_size)
        self._heads = None if layer.num_attention_heads == layer.total_heads else list(layer.heads)
        weight = self._of_heads(output.float())  # (D, H·d)
        self.gram = weight.mT @ weight  # W_O W_Oᵀ, (H·d, H·d)
        value: Any = layer.value
        native_value = self._of_heads(native.projection("value").weight.detach().mT).mT  # (H·d, D_k)
        if not torch.equal(native_value.to(value.weight), value.weight):
            raise ConfigurationError(
                "The model's value projections differ from the original's, so its layers cannot be refined separately. "
                "Refine before other training, or heal instead."
            )
        self.parameters = [
            parameter for name, parameter in self.layer.named_parameters() if name.partition(".")[0] in FACTORS
        ]
        self._spreads: list[float] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._sums: dict[int, _Errors] = {}

    def _of_heads(self, tensor: Tensor) -> Tensor:
        """Selects the columns of the layer's heads, (…, K) → (…, H·d)."""
        if self._heads is None:
            return tensor
        return tensor.unflatten(-1, self._shape)[..., self._heads, :].flatten(-2)

    def _difference(self, shown: LayerExample) -> tuple[Tensor, Tensor]:
        """ẑ, and ẑ - z without a gradient, zero for padding, (B, T, H·d)."""
        layer = self.layer
        values = layer.values_by_head(self._of_heads(shown.values))  # (B, H, S, d)
        context, _ = layer.project_and_attend(
            shown.queries,
            shown.keys,
            values,
            shown.mask,
            shown.position_bias,
            shown.positions,
            is_causal=shown.is_causal,
        )  # (B, T, H·d)
        difference = context.detach() - self._of_heads(shown.context)
        return context, difference if shown.seen is None else difference.masked_fill(~shown.seen, 0.0)

    def measure(self, shown: LayerExample) -> None:
        """Adds the errors of one pass to the sums."""
        sums = self._sums.setdefault(shown.number, _Errors(self.gram))
        with torch.no_grad():
            _, difference = self._difference(shown)
        context = self._of_heads(shown.context)
        if shown.seen is None:
            sums.add(difference, context, context.shape[:2].numel())
        else:
            sums.add(difference, context.masked_fill(~shown.seen, 0.0), int(shown.seen.sum()))

    def measured(self) -> float:
        """The relative error of all that the processes measured, the mean over passes; resets the sums."""
        numbers = sorted({number for own in gathered(list(self._sums)) for number in own})
        passes = [self._sums.get(number) or _Errors(self.gram) for number in numbers]
        for sums in passes:
            sums.add_other_processes()
        self._sums = {}
        self._spreads = [errors.spread for errors in passes]
        return sum(errors.relative for errors in passes) / len(passes)

    def start(self, learning_rate: float | None) -> None:
        """Makes the factors trainable."""
        rate = form_named(self.layer.spec.form).learning_rate if learning_rate is None else learning_rate
        groups = []
        for parameter in self.parameters:
            parameter.requires_grad_(True)
            # The sizes of content biases, projections and cores differ by a factor of a hundred.
            highest = rate * float(parameter.detach().square().mean().sqrt())
            groups.append({"params": [parameter], "lr": highest, "highest": highest})
        self._optimizer = torch.optim.Adam(groups, betas=_BETAS)

    def learn(self, shown: LayerExample) -> None:
        """Adds the gradient of one pass's squared error, relative to the spread."""
        with torch.enable_grad():
            context, difference = self._difference(shown)
        # ∂‖d W_O‖²/∂d = 2 d W_O W_Oᵀ: writing out this gradient saves a product.
        context.backward(difference @ self.gram * (2 / (self._spreads[shown.number] * len(self._spreads))))

    def step(self, rate: float, tokens: int) -> None:
        """One step of Adam; `tokens` is the number of tokens that the gradients are sums over."""
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * rate
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= tokens
        self._optimizer.step()
        self._optimizer.zero_grad()

    def round(self) -> None:
        """Ends training, and rounds the factors to the dtype of the model."""
        self._optimizer = None
        for parameter in self.parameters:
            parameter.requires_grad_(False)
            parameter.copy_(parameter.to(self.dtype))

    def store(self, layer: CollaborativeAttention) -> None:
        """Copies the factors into a layer of the model."""
        new = dict(self.layer.named_parameters())
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.partition(".")[0] in FACTORS:
                    parameter.copy_(new[name])


def _measure(watch: Observer, learners: Mapping[str, _Learner], batches: Sequence[Batch]) -> dict[str, float]:
    """Every layer's relative squared error on some batches, which the processes divide."""
    for batch in own_rows(batches):
        watch.run(batch, learners, lambda name, shown: learners[name].measure(shown))
    return {name: learner.measured() for name, learner in learners.items()}


def _add_gradients(learners: Iterable[_Learner]) -> None:
    """Adds the gradients of the other processes, all at once."""
    if processes() > 1:
        parameters = [parameter for learner in learners for parameter in learner.parameters]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        total = summed(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(parameters, total.split([each.numel() for each in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def _train(
    watch: Observer,
    learners: Mapping[str, _Learner],
    batches: Sequence[Batch],
    options: RefineOptions,
    progress: Progress,
) -> None:
    """Trains all layers on the same batches."""
    if not learners:
        return
    for learner in learners.values():
        learner.start(options.learning_rate)
    progress("refining", 0, options.steps)
    drawn = recordings(watch, learners, batches, options)
    for step in range(options.steps):
        rows = tokens = 0
        while rows < options.rows and tokens < options.tokens:
            batch, passes = next(drawn)  # none if another process has them
            for name, shown in passes:
                learners[name].learn(shown)
            rows, tokens = rows + count_rows(batch), tokens + count_tokens(batch)
        rate = min(1.0, (step + 1) / _WARM_UP) * (1 + math.cos(math.pi * step / options.steps)) / 2
        _add_gradients(learners.values())
        for learner in learners.values():
            learner.step(rate, tokens)
        progress("refining", step + 1, options.steps)
