"""Refinement: every attention layer of a conversion trained alone, on the original's inputs to it.

A conversion solves each layer in closed form for its scores. What the rest of the model sees is the layer's output
o = [z_1 … z_H] W_O, so the new factors are trained for it: Adam on the relative squared error ‖(ẑ - z) W_O‖²/‖z W_O‖²,
the denominator about the mean, over tokens that are not padding. Values and W_O are the original's. Nothing goes back
through the feed-forward layers or from layer to layer: running the original costs more than training. So what it does
on a few steps' rows is kept and serves several times, which bounds the memory whatever the number of rows.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.features import Batch
from ..data.prepare import hold_out
from ..errors import ConfigurationError, DataError, NotConvertedError
from ..evaluation.compare import check_comparable
from ..io.options import Progress, no_progress
from ..modeling.collab_attention import CollaborativeAttention
from ..models.families import collaborative_layers, require_family
from ..models.states import attending_by
from .observe import LayerPass, Observer, pieces_of, recordings
from .options import RefineOptions

logger = logging.getLogger(__name__)

Accept = Callable[[str, CollaborativeAttention], bool]

FACTORS = ("query", "key", "mixing", "content_bias", "query_offset")
"""Parameters of a collaborative layer that its original does not have."""

_PERIOD = 8  # one batch in this many is held out where none are given
_WARM_UP = 10  # steps
_BETAS = (0.9, 0.99)
_RATES = {"concat": 0.02, "cp": 0.02, "tucker": 0.01}
_EXACT = 1e-9  # relative squared errors below this are rounding
_ALIKE = 1e-6  # as is a spread below this part of the mean square


@dataclass(frozen=True)
class LayerRefinement:
    """What refinement did to one layer.

    Attributes:
        before: relative squared error of the attention output on the held-out rows; where the weights serve several
            passes, the mean over these.
        after: the same with the weights that training ended with.
        kept: whether the layer has these weights. If not, it is as it was.
    """

    before: float
    after: float
    kept: bool

    @property
    def error(self) -> float:
        """Of the layer as it is now."""
        return self.after if self.kept else self.before


@dataclass(frozen=True)
class Refinement:
    """What `refine` did.

    Attributes:
        layers: by module name, in the order of the model; without those that have no heads left.
        options: how.
        seconds: time taken.
    """

    layers: dict[str, LayerRefinement]
    options: RefineOptions
    seconds: float

    @property
    def improved(self) -> bool:
        """Whether any layer was changed."""
        return any(layer.kept for layer in self.layers.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def refine(
    model: PreTrainedModel,
    original: PreTrainedModel,
    batches: Sequence[Batch],
    held_out: Sequence[Batch] | None = None,
    *,
    options: RefineOptions | None = None,
    accept: Accept | None = None,
    progress: Progress = no_progress,
) -> Refinement:
    """Trains the new factors of every layer, in place, until its attention output is as near the original's as it gets.

    A layer keeps its new weights only if its error on the held-out batches fell; otherwise it is as it was. Nothing
    else of either model changes. It computes in float32 whatever the models are in.

    Args:
        model: the converted model.
        original: what it was converted from.
        batches: keyword arguments for the original, to train on.
        held_out: the same, to judge by; None to hold out every eighth of `batches`.
        options: how.
        accept: asked about a layer that came closer, with its name and a copy that has the new weights, in float32;
            without its consent the layer stays as it was. None to accept all.
        progress: called after every step.

    Raises:
        ConfigurationError: if the models do not go together, or the converted one's values are not the original's any
            more.
        NotConvertedError: if the model is not a converted one.
        DataError: if there is nothing to train on or to judge by.
    """
    options = options or RefineOptions()
    start = time.perf_counter()
    layers = collaborative_layers(model)
    if not layers:
        raise NotConvertedError("The model has no collaborative attention, so there is nothing to refine.")
    check_comparable(model, original)
    if options.steps == 0:
        return Refinement({}, options, 0.0)
    train, judge = (batches, held_out) if held_out is not None or not batches else hold_out(list(batches), _PERIOD)
    if not train or not judge:
        raise DataError("Refinement needs batches to train on and others to judge by; give at least two.")

    watch = Observer(original, require_family(original.config))
    learners = {
        name: _Learner(layer, *watch.projections(name), original.config.num_attention_heads)
        for name, layer in layers.items()
        if layer.heads
    }
    with torch.inference_mode(False), attending_by(original, _implementation(original)), watch.watching():
        held_pieces = pieces_of(judge)
        before = _measure(watch, learners, held_pieces)
        trained = {name: learner for name, learner in learners.items() if before[name] > _EXACT}
        _train(watch, trained, pieces_of(train), options, progress)
        for learner in trained.values():
            learner.round()
        after = before | _measure(watch, trained, held_pieces)  # of layers that are exact, nothing is new
    results = {}
    for name, learner in learners.items():
        kept = after[name] < before[name] and (accept is None or accept(name, learner.layer))
        results[name] = LayerRefinement(before[name], after[name], kept)
        logger.info(
            "%s: output error %.5f, refined %.5f%s", name, before[name], after[name], "" if kept else ", undone"
        )
        if kept:
            learner.store(layers[name])
    return Refinement(results, options, time.perf_counter() - start)


def _implementation(model: PreTrainedModel) -> str:
    """The fused kernel, whose masks every collaborative layer takes, unless the config wants weights as well."""
    return "eager" if model.config.output_attentions or not model._supports_sdpa else "sdpa"


class _Errors:
    """Sums of squared errors of one layer in one pass, and of what they are relative to.

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

    @property
    def spread(self) -> float:
        """Mean ‖(z - z̄) W_O‖² of a token; where all tokens are alike, mean ‖z W_O‖²."""
        mean = self._total / self._tokens  # (H·d,)
        square = self._square / self._tokens
        about_mean = square - float(mean @ self._gram.double() @ mean)
        return about_mean if about_mean > _ALIKE * square else square

    @property
    def relative(self) -> float:
        """Mean ‖(ẑ - z) W_O‖² relative to the spread."""
        return self._error / self._tokens / self.spread if self.spread > 0 else 0.0


class _Learner:
    """One layer's factors in float32 while they are trained.

    Args:
        layer: of the converted model; left as it is.
        native_value: the original's value projection.
        native_output: the original's W_O.
        total_heads: the original's number of heads.

    Raises:
        ConfigurationError: if the layer's values are not those of the original.
    """

    def __init__(
        self, layer: CollaborativeAttention, native_value: nn.Linear, native_output: nn.Linear, total_heads: int
    ) -> None:
        self.dtype = layer.query.weight.dtype
        self.layer = copy.deepcopy(layer).to(native_output.weight.device).float().eval().requires_grad_(False)
        self.layer.config._attn_implementation_internal = "sdpa"
        self._shape = (total_heads, layer.attention_head_size)
        self._heads = None if layer.num_attention_heads == total_heads else list(layer.heads)
        weight = self._of_heads(native_output.weight.detach().float())  # (D, H·d)
        self.gram = weight.mT @ weight  # W_O W_Oᵀ, (H·d, H·d)
        value: Any = layer.value
        native = self._of_heads(native_value.weight.detach().mT).mT  # (H·d, D_k)
        if not torch.equal(native.to(value.weight), value.weight):
            raise ConfigurationError(
                "The model's values are not its original's any more, so its layers cannot be refined one by one. "
                "Refine before training anything else, or heal instead."
            )
        self._parameters = [
            parameter for name, parameter in self.layer.named_parameters() if name.partition(".")[0] in FACTORS
        ]
        self._spreads: list[float] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._sums: dict[int, _Errors] = {}

    def _of_heads(self, tensor: Tensor) -> Tensor:
        """The columns (…, K) of the heads that there are, (…, H·d)."""
        if self._heads is None:
            return tensor
        return tensor.unflatten(-1, self._shape)[..., self._heads, :].flatten(-2)

    def _difference(self, shown: LayerPass) -> tuple[Tensor, Tensor]:
        """ẑ, and ẑ - z without a gradient, zero for padding, (B, T, H·d)."""
        layer = self.layer
        values = self._of_heads(shown.values).unflatten(-1, (layer.num_attention_heads, -1))  # (B, S, H, d)
        context, _ = layer.attend(
            layer.query(shown.queries),
            layer.keys(shown.keys),
            values.transpose(1, 2),
            layer.bias(shown.keys),
            shown.mask,
            shown.position_bias,
        )  # (B, T, H·d)
        difference = context.detach() - self._of_heads(shown.context)
        return context, difference if shown.seen is None else difference.masked_fill(~shown.seen, 0.0)

    def measure(self, shown: LayerPass) -> None:
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
        """The mean over passes of the relative error of all that was measured; the sums are used up."""
        passes = [self._sums[number] for number in sorted(self._sums)]
        self._sums = {}
        self._spreads = [errors.spread for errors in passes]
        return sum(errors.relative for errors in passes) / len(passes)

    def start(self, learning_rate: float | None) -> None:
        """Makes the factors trainable."""
        rate = _RATES[self.layer.spec.form] if learning_rate is None else learning_rate
        groups = []
        for parameter in self._parameters:
            parameter.requires_grad_(True)
            # Content biases, projections and cores differ a hundredfold in size.
            highest = rate * float(parameter.detach().square().mean().sqrt())
            groups.append({"params": [parameter], "lr": highest, "highest": highest})
        self._optimizer = torch.optim.Adam(groups, betas=_BETAS)

    def learn(self, shown: LayerPass) -> None:
        """Adds the gradient of one pass: of its squared error, relative to the spread."""
        with torch.enable_grad():
            context, difference = self._difference(shown)
        # ∂‖d W_O‖²/∂d = 2 d W_O W_Oᵀ: going back through W_O by hand saves a product.
        context.backward(difference @ self.gram * (2 / (self._spreads[shown.number] * len(self._spreads))))

    def step(self, rate: float, tokens: int) -> None:
        """One step of Adam on what was learned from so many tokens."""
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * rate
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= tokens
        self._optimizer.step()
        self._optimizer.zero_grad()

    def round(self) -> None:
        """Ends training, and rounds the factors to what the model will store."""
        self._optimizer = None
        for parameter in self._parameters:
            parameter.requires_grad_(False)
            parameter.copy_(parameter.to(self.dtype))

    def store(self, layer: CollaborativeAttention) -> None:
        """Copies the factors into a layer of the model."""
        new = dict(self.layer.named_parameters())
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.partition(".")[0] in FACTORS:
                    parameter.copy_(new[name])


def _measure(watch: Observer, learners: Mapping[str, _Learner], pieces: Sequence[Batch]) -> dict[str, float]:
    """Every layer's relative squared error on some batches."""

    def visit(name: str, shown: LayerPass) -> None:
        if name in learners:
            learners[name].measure(shown)

    for piece in pieces:
        watch.run(piece, visit)
    return {name: learner.measured() for name, learner in learners.items()}


def _train(
    watch: Observer,
    learners: Mapping[str, _Learner],
    pieces: Sequence[Batch],
    options: RefineOptions,
    progress: Progress,
) -> None:
    """Trains all layers on the same batches."""
    if not learners:
        return
    for learner in learners.values():
        learner.start(options.learning_rate)
    drawn = recordings(watch, learners, pieces, options)
    for step in range(options.steps):
        rows = tokens = 0
        while rows < options.rows and tokens < options.tokens:
            recording = next(drawn)
            for name, shown in recording.passes:
                learners[name].learn(shown)
            rows, tokens = rows + recording.rows, tokens + recording.tokens
        rate = min(1.0, (step + 1) / _WARM_UP) * (1 + math.cos(math.pi * step / options.steps)) / 2
        for learner in learners.values():
            learner.step(rate, tokens)
        progress("refining", step + 1, options.steps)
