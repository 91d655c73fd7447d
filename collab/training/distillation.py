"""Distillation: matching another model's hidden states and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..models.answers import answers_of
from ..models.inputs import answer_mask
from ..models.layers import dropped_layers, matched_states
from .run import GuardedTrainer


def relative_errors(
    model: PreTrainedModel, student: Any, teacher: Any, inputs: Mapping[str, Tensor], dropped: Sequence[int] = ()
) -> Tensor:
    """Relative squared errors of the student's hidden states after every layer, and of its logits if it has any.

    Each is ‖s - t‖²/‖t - t̄‖² over the tokens that are not padding, with t̄ the teacher's mean over them. It is 1 for a
    layer that predicts only that mean, so layers have equal weight whatever the size of their states.

    Args:
        model: the teacher, which tells what kind of answer its logits are.
        student: outputs with hidden states.
        teacher: the teacher's outputs with hidden states, without gradients.
        inputs: what both were given, whose masks, (B, T) or (B, choices, T), tell what is padding.
        dropped: numbers of the teacher's layers that the student lacks.

    Returns:
        Shape (layers,) or (layers + logits,).
    """
    pairs = []
    for (ours, mask), (theirs, _) in zip(_states(student, inputs), _states(teacher, inputs), strict=True):
        # Inside the model, the choices of an example are separate rows.
        by_row = None if mask is None else mask.flatten(0, -2)
        states = zip(ours[1:], matched_states(theirs, dropped), strict=True)
        pairs += [(_seen(mine, by_row), _seen(yours, by_row)) for mine, yours in states]
    answered = zip(*(answers_of(model, output, answer_mask(inputs)) for output in (student, teacher)), strict=True)
    pairs += [(ours.rows, theirs.rows) for ours, theirs in answered if ours.kind != "states"]
    return torch.stack([_relative(*pair) for pair in pairs])


def _states(output: Any, inputs: Mapping[str, Tensor]) -> list[tuple[Sequence[Tensor], Tensor | None]]:
    """Hidden states and their mask, of an encoder-decoder those of both parts."""
    mask = inputs.get("attention_mask")
    if "decoder_input_ids" not in inputs:
        return [(output.hidden_states, mask)]
    encoded = output.encoder_hidden_states
    return [
        (encoded, mask if mask is not None and mask.shape == encoded[0].shape[:2] else None),
        (output.decoder_hidden_states, answer_mask(inputs)),
    ]


def _relative(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = student.float(), teacher.float()  # (N, D)
    spread = (teacher - teacher.mean(dim=0)).square().sum()
    # A single row has no spread.
    return (student - teacher).square().sum() / torch.where(spread > 0, spread, teacher.square().sum() + 1e-12)


def _seen(states: Tensor, mask: Tensor | None) -> Tensor:
    """(B, T, D) → (N, D) without padding; outputs of another shape are only flattened."""
    if mask is not None and states.shape[:-1] == mask.shape:
        return states[mask.bool()]
    return states.flatten(0, -2)


def answers(teacher: nn.Module, inputs: dict[str, Any]) -> Any:
    """A teacher's outputs with hidden states, without gradients."""
    with torch.no_grad():
        return teacher(**inputs, output_hidden_states=True)


def distillation_loss(
    student: nn.Module, teacher: PreTrainedModel, expected: Any, inputs: dict[str, Any]
) -> tuple[Tensor, Any]:
    """The mean of `relative_errors` to a teacher's outputs on the same inputs, and the student's outputs."""
    actual = student(**inputs, output_hidden_states=True)
    return relative_errors(teacher, actual, expected, inputs, dropped_layers(student)).mean(), actual


class DistillationTrainer(GuardedTrainer):
    """Trains a model to match its teacher.

    Args:
        teacher: the model to match; it is moved to the student's device and not trained.
        arguments: arguments of `Trainer`.
    """

    def __init__(self, *, teacher: PreTrainedModel, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._teacher = teacher.eval().to(self.args.device)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See `distillation_loss`. The teacher computes in the precision of the training, too."""
        with self.accelerator.autocast():
            expected = answers(self._teacher, inputs)
        loss, actual = distillation_loss(model, self._teacher, expected, inputs)
        return (loss, actual) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """Only the loss."""
        with torch.no_grad():
            inputs = self._prepare_inputs(inputs)
            return self.compute_loss(model, inputs).detach(), None, None
