"""The outputs of a model: which of them are logits, of what kind, and which entries are not padding.

Notation: B batch, T tokens, C classes, labels or numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForPreTraining, PreTrainedModel

from .inputs import has_choices, is_loaded_by
from .layers import ALL_THERE, Dropped
from .padding import seen_tokens, without_padding

OutputKind = Literal["class", "span", "labels", "token label", "numbers", "states"]
"""The kind of an output:

- ``class``: logits of C classes for every row or token, a softmax over the last axis;
- ``span``: logits of where in a row an answer starts or ends, a softmax over its tokens;
- ``labels``: logits of C independent labels for every row, a sigmoid of each;
- ``token label``: the logit of a single label for every token, a sigmoid;
- ``numbers``: the outputs of a regression;
- ``states``: hidden states or an image, of models without logits.
"""

_SPANS = ("start_logits", "end_logits")
_OF_PAIRS = ("seq_relationship_logits", "sop_logits")
_STATES = ("last_hidden_state", "reconstruction", "projected_states")
_HIDDEN_STATES = {
    "hidden_states": "attention_mask",
    "encoder_hidden_states": "attention_mask",
    "decoder_hidden_states": "decoder_attention_mask",
}
"""Hidden states in the outputs of models, with the masks of their tokens."""


@dataclass(frozen=True)
class Output:
    """One output of a model.

    Attributes:
        name: name of the output.
        kind: see `OutputKind`.
        values: logits, numbers or states in float32, with their graph: (B, C), (B, T, C), or (B, T) with a single logit
            for each token.
        seen: (B, T), True for tokens that are not padding; None if the values are not by token or nothing is padding.
    """

    name: str
    kind: OutputKind
    values: Tensor
    seen: Tensor | None

    @property
    def uncertain(self) -> bool:
        """Whether the values are logits of a distribution."""
        return self.kind not in ("numbers", "states")

    @property
    def of_tokens(self) -> bool:
        """Whether every token has a distribution of its own, and not every row."""
        return self.kind == "token label" or (self.kind == "class" and self.values.ndim > 2)

    def direction(self, generator: torch.Generator) -> Tensor:
        """A random direction g of the shape of the values, zero at padding, to measure a change δ of the values along.

        For numbers and states g is Gaussian. For logits E[(g·δ)²] is δᵀFδ, with F = diag(p) - p pᵀ the Fisher
        information of their distribution p; it is twice the KL divergence that a small change causes. Gradients of the
        log-likelihood of a sample, e_c - p with c drawn from p, have that second moment too, but where the model is
        sure nearly all of them are about zero and a few are large, so that few rows count. Here every row counts: class
        c has probability q_c ∝ p_c‖e_c - p‖², and g = ±√(p_c/q_c) (e_c - p) always has the squared norm
        tr F = 1 - ‖p‖². Likewise g = ±√(p(1 - p)) for each independent label.
        """
        if not self.uncertain:
            direction = torch.randn(self.values.shape, generator=generator).to(self.values.device)
        elif self.kind in ("class", "span"):
            direction = self._class_direction(generator)
        else:
            direction = (self._probabilities * (1 - self._probabilities)).sqrt()
            direction = direction * _signs(direction, generator)
        if self.seen is None:
            return direction
        seen = self.seen.view(*self.seen.shape, *[1] * (self.values.ndim - self.seen.ndim))
        return direction * seen.to(direction)

    def _class_direction(self, generator: torch.Generator) -> Tensor:
        """A direction of the logits of a softmax; see `direction`."""
        probabilities = self._probabilities
        norm = probabilities.square().sum(-1, keepdim=True)  # ‖p‖²
        distances = (1 - 2 * probabilities + norm).clamp(min=0)  # ‖e_c - p‖²
        weights = (probabilities * distances).clamp(min=torch.finfo(norm.dtype).tiny)
        drawn = _drawn(weights, generator).unsqueeze(-1)
        direction = (-probabilities).scatter_add(-1, drawn, torch.ones_like(norm))  # e_c - p
        length = direction.square().sum(-1, keepdim=True).clamp(min=torch.finfo(norm.dtype).tiny)
        return direction * ((1 - norm).clamp(min=0) / length).sqrt() * _signs(norm, generator)

    def draw(self, generator: torch.Generator) -> Tensor:
        """A sample from the distribution: class indices, (B,) or (B, T), or labels, 0 or 1, (B, C or T)."""
        probabilities = self._probabilities
        if self.kind in ("class", "span"):
            return _drawn(probabilities, generator)
        return torch.bernoulli(probabilities.cpu(), generator=generator).to(probabilities.device)

    def log_likelihood(self, drawn: Tensor) -> Tensor:
        """Log-likelihood of a sample, with its graph: (B,), or (B, T) by token."""
        if self.kind in ("class", "span"):
            return self._logits.log_softmax(-1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        likelihood = -functional.binary_cross_entropy_with_logits(self.values, drawn, reduction="none")
        return likelihood if self.kind == "token label" else likelihood.sum(-1)

    def divergence(self, other: Output) -> Tensor:
        """The Kullback-Leibler divergence of another model's output from this one, in nats: (B,), or (B, T) by token.

        The divergences of a row's independent labels are summed.
        """
        if self.kind in ("class", "span"):
            target, given = self._logits.log_softmax(-1), other._logits.log_softmax(-1)
            return functional.kl_div(given, target, log_target=True, reduction="none").sum(-1)
        divergence = torch.zeros_like(self.values)
        for sign in (1, -1):  # of yes and of no
            target, given = (functional.logsigmoid(sign * output.values) for output in (self, other))
            divergence = divergence + target.exp() * (target - given)
        return divergence if self.kind == "token label" else divergence.sum(-1)

    def same(self, other: Output) -> Tensor:
        """Whether both predict the same class, (B,) or (B, T), or the same value of each label, (B, C or T)."""
        if self.kind in ("class", "span"):
            return self._logits.argmax(-1) == other._logits.argmax(-1)
        return (self.values > 0) == (other.values > 0)

    def of_seen(self, values: Tensor) -> Tensor:
        """Drops padding from a tensor by token.

        Returns:
            (N, ...) if the tensor is by token; the tensor itself otherwise.
        """
        by_token = self.seen is not None and values.shape[: self.seen.ndim] == self.seen.shape
        return values[self.seen] if by_token else values

    @property
    def rows(self) -> Tensor:
        """The values without padding, a row for each distribution: (N, C), or (N, 1) with a single logit per token."""
        values = self.values.unsqueeze(-1) if self.kind in ("span", "token label") else self.values
        return self.of_seen(values).flatten(0, -2)

    @property
    def _logits(self) -> Tensor:
        """The values, masked at the padding of a span."""
        if self.kind != "span" or self.seen is None:
            return self.values
        # Not -∞, whose product with a probability of zero is not a number.
        return self.values.masked_fill(~self.seen, torch.finfo(self.values.dtype).min / 2)

    @property
    def _probabilities(self) -> Tensor:
        logits = self._logits.detach()
        return logits.softmax(-1) if self.kind in ("class", "span") else logits.sigmoid()


def _drawn(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Indices drawn by weights along the last axis, (…, C) → (…)."""
    drawn = torch.multinomial(weights.flatten(0, -2).cpu(), 1, generator=generator)
    return drawn.to(weights.device).view(weights.shape[:-1])


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs, 1 or -1."""
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like)


def outputs_of(model: PreTrainedModel, returned: Any, mask: Any) -> list[Output]:
    """The logits that a model returned, or its hidden states if there are none.

    Args:
        model: the model, native or converted; its class and config tell what its logits are.
        returned: what it returned.
        mask: its attention mask, (B, T), or None.

    Returns:
        The outputs in the model's order; empty if there are neither logits nor hidden states.
    """
    entries = dict(returned.items()) if hasattr(returned, "items") else {_STATES[0]: returned[0]}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    kinds: dict[str, OutputKind] = {
        name: _kind(model, name, value) for name, value in tensors.items() if name.endswith("logits")
    }
    kinds = kinds or {name: "states" for name in _STATES if name in tensors}
    return [_output(name, kind, tensors[name].float(), mask) for name, kind in kinds.items()]


def _output(name: str, kind: OutputKind, values: Tensor, mask: Any) -> Output:
    by_token = values.ndim > 2 or kind in ("span", "token label")
    return Output(name, kind, values, seen_tokens(mask, values) if by_token else None)


def entries_of(returned: Any) -> int | None:
    """The number of entries of the tensors that a module returned; None if it returned anything else."""
    if isinstance(returned, Tensor):
        return returned.numel()
    if isinstance(returned, Mapping):
        return entries_of([*returned.values()])
    if isinstance(returned, tuple | list):
        counts = [entries_of(each) for each in returned]
        return None if None in counts else sum(count or 0 for count in counts)
    return 0 if returned is None else None


def matched_states(
    model: Any, original: Any, batch: Mapping[str, Tensor], dropped: Dropped = ALL_THERE
) -> Iterator[tuple[Tensor, Tensor]]:
    """The hidden states of a converted model and the original's that they stand for, without padding.

    There is a pair for every layer of the converted model, of an encoder's before those of its decoder. Where layers
    were dropped, the one before them is to give what entered the layer after them.

    Args:
        model: what the model returned for the batch, with hidden states.
        original: what the original returned.
        batch: what both were given.
        dropped: the original's layers that the model lacks.
    """
    for name, mask in _HIDDEN_STATES.items():
        if name not in model:
            continue
        ours, theirs = model[name], original[name]  # those of the embeddings first
        absent = dropped.decoder if name == "decoder_hidden_states" else dropped.layers
        kept = [number for number in range(len(theirs) - 1) if number not in absent]
        for states, number in zip(ours[1:], [*kept[1:], len(theirs) - 1], strict=True):
            yield without_padding(states, batch.get(mask)), without_padding(theirs[number], batch.get(mask))


def _kind(model: PreTrainedModel, name: str, values: Tensor) -> OutputKind:
    """The kind of logits."""
    if name in _SPANS:
        return "span"
    if values.ndim == 2 and name not in _OF_PAIRS:
        if is_loaded_by(model, AutoModelForPreTraining):
            return "token label"
        problem = getattr(model.config, "problem_type", None)
        if not has_choices(model) and problem in ("multi_label_classification", "regression"):
            return "labels" if problem == "multi_label_classification" else "numbers"
    # A softmax over a single class is constant, but its logit may be compared with others, or be a number.
    return "numbers" if values.shape[-1] == 1 else "class"
