"""What a model's outputs answer: which of them are logits, what kind of answer those are, and which entries count.

Notation: B batch, T tokens, C classes, labels or numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForPreTraining, PreTrainedModel

from .inputs import has_choices

Kind = Literal["class", "span", "labels", "token label", "numbers", "states"]
"""What an output is:

- ``class``: one of C, of every row or token, by a softmax over the last axis;
- ``span``: where in a row an answer starts or ends, by a softmax over its tokens;
- ``labels``: of every row, whether each of C labels applies, by a sigmoid of each;
- ``token label``: of every token, whether the one label applies, by a sigmoid;
- ``numbers``: of a regression with any number of outputs;
- ``states``: no answer, but hidden states or an image, of models without logits.
"""

_SPANS = ("start_logits", "end_logits")
_OF_PAIRS = ("seq_relationship_logits", "sop_logits")
_STATES = ("last_hidden_state", "reconstruction")


@dataclass(frozen=True)
class Answer:
    """One output of a model.

    Attributes:
        name: what the model calls it.
        kind: see `Kind`.
        values: logits, numbers or states in float32, part of the graph: (B, C), (B, T, C), or (B, T) where there is one
            logit for each token.
        seen: (B, T), true for tokens that are not padding, where the values are of tokens; None where all count.
    """

    name: str
    kind: Kind
    values: Tensor
    seen: Tensor | None

    @property
    def uncertain(self) -> bool:
        """Whether the values are logits of a distribution."""
        return self.kind not in ("numbers", "states")

    def direction(self, generator: torch.Generator) -> Tensor:
        """A random direction in which a change of the values is to be looked at, of their shape, zero at padding.

        Of a distribution, the gradient by its logits of the log-likelihood of what was drawn from it, so that the
        squared change is on average the KL divergence (the Fisher metric). Of numbers and states, Gaussian.
        """
        values = self.values.detach()
        if not self.uncertain:
            direction = torch.randn(values.shape, generator=generator).to(values.device)
        else:
            drawn, probabilities = self.draw(generator), self._probabilities
            if self.kind in ("class", "span"):
                ones = torch.ones_like(drawn, dtype=values.dtype).unsqueeze(-1)
                direction = (-probabilities).scatter_add(-1, drawn.unsqueeze(-1), ones)
            else:
                direction = drawn - probabilities
        if self.seen is None:
            return direction
        return direction * self.seen.view(*self.seen.shape, *[1] * (values.ndim - self.seen.ndim)).to(direction)

    def draw(self, generator: torch.Generator) -> Tensor:
        """An answer drawn from the distribution: numbers of classes, (B,) or (B, T), or labels, 0 or 1, (B, C or T)."""
        probabilities = self._probabilities
        if self.kind in ("class", "span"):
            flat = probabilities.flatten(0, -2).cpu()
            drawn = torch.multinomial(flat, 1, generator=generator)
            return drawn.to(probabilities.device).view(probabilities.shape[:-1])
        return torch.bernoulli(probabilities.cpu(), generator=generator).to(probabilities.device)

    def log_likelihood(self, drawn: Tensor) -> Tensor:
        """Of something drawn, for each answer: (B,), or (B, T) where every token has one; with its graph."""
        if self.kind in ("class", "span"):
            return self._logits.log_softmax(-1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        likelihood = -functional.binary_cross_entropy_with_logits(self.values, drawn, reduction="none")
        return likelihood if self.kind == "token label" else likelihood.sum(-1)

    def divergence(self, other: Answer) -> Tensor:
        """The Kullback-Leibler divergence of another model's answers from these, nats: (B,), or (B, T) by token.

        Labels of one row are taken together: their divergences are summed.
        """
        if self.kind in ("class", "span"):
            target, given = self._logits.log_softmax(-1), other._logits.log_softmax(-1)
            return functional.kl_div(given, target, log_target=True, reduction="none").sum(-1)
        divergence = torch.zeros_like(self.values)
        for sign in (1, -1):  # of yes and of no
            target, given = (functional.logsigmoid(sign * answer.values) for answer in (self, other))
            divergence = divergence + target.exp() * (target - given)
        return divergence if self.kind == "token label" else divergence.sum(-1)

    def same(self, other: Answer) -> Tensor:
        """Whether both prefer the same class, (B,) or (B, T); by label where there are labels, (B, C or T)."""
        if self.kind in ("class", "span"):
            return self._logits.argmax(-1) == other._logits.argmax(-1)
        return (self.values > 0) == (other.values > 0)

    def of_seen(self, values: Tensor) -> Tensor:
        """What does not belong to padding, of the values or anything else by row, token or label.

        Returns:
            (N, ...) where it is by token; as it was otherwise.
        """
        by_token = self.seen is not None and values.shape[: self.seen.ndim] == self.seen.shape
        return values[self.seen] if by_token else values

    @property
    def rows(self) -> Tensor:
        """The values that count, as rows of what belongs together: (N, C), and (N, 1) with one logit for a token."""
        values = self.values.unsqueeze(-1) if self.kind in ("span", "token label") else self.values
        return self.of_seen(values).flatten(0, -2)

    @property
    def _logits(self) -> Tensor:
        """The values, without the tokens that a span cannot be at."""
        if self.kind != "span" or self.seen is None:
            return self.values
        # Not -∞, whose product with a probability of zero is not a number.
        return self.values.masked_fill(~self.seen, torch.finfo(self.values.dtype).min / 2)

    @property
    def _probabilities(self) -> Tensor:
        logits = self._logits.detach()
        return logits.softmax(-1) if self.kind in ("class", "span") else logits.sigmoid()


def answers_of(model: PreTrainedModel, output: Any, mask: Tensor | None) -> list[Answer]:
    """The logits that a model has given, or its states if it has none.

    Args:
        model: of any kind that collab converts, native or converted; what its logits are is in its class and config.
        output: what it returned.
        mask: its attention mask, or None.

    Returns:
        In the order of the output; nothing if there are neither.
    """
    entries = dict(output.items()) if hasattr(output, "items") else {_STATES[0]: output[0]}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    kinds: dict[str, Kind] = {
        name: _kind(model, name, value) for name, value in tensors.items() if name.endswith("logits")
    }
    kinds = kinds or {name: "states" for name in _STATES if name in tensors}
    return [_answer(name, kind, tensors[name].float(), mask) for name, kind in kinds.items()]


def _answer(name: str, kind: Kind, values: Tensor, mask: Tensor | None) -> Answer:
    by_token = values.ndim > 2 or kind in ("span", "token label")
    fits = mask is not None and mask.ndim == 2 and values.shape[:2] == mask.shape
    return Answer(name, kind, values, mask.bool() if mask is not None and by_token and fits else None)


def _kind(model: PreTrainedModel, name: str, values: Tensor) -> Kind:
    """What logits are."""
    if name in _SPANS:
        return "span"
    if values.ndim == 2 and name not in _OF_PAIRS:
        if type(model) is AutoModelForPreTraining._model_mapping.get(type(model.config), None):
            return "token label"
        problem = getattr(model.config, "problem_type", None)
        if not has_choices(model) and problem in ("multi_label_classification", "regression"):
            return "labels" if problem == "multi_label_classification" else "numbers"
    # One class alone is certain, but its logit may be compared with others, or be a number.
    return "numbers" if values.shape[-1] == 1 else "class"
