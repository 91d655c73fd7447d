"""Distillation: matching another model's hidden states and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.features import Batch
from ..models.layers import dropped_layers
from ..models.outputs import matched_states, outputs_of
from ..models.padding import output_mask
from .trainer import GuardedTrainer


def relative_errors(student: Any, teacher: Any, inputs: Mapping[str, Tensor], dropped: Sequence[int] = ()) -> Tensor:
    """Relative squared errors of the student's hidden states after every layer.

    Each is ‖s - t‖²/‖t - t̄‖² over the tokens that are not padding, with t̄ the teacher's mean over them. It is 1 for a
    layer that predicts only that mean, so layers have equal weight whatever the size of their states.

    Args:
        student: outputs with hidden states.
        teacher: the teacher's outputs with hidden states, without gradients.
        inputs: what both were given, whose masks, (B, T) or (B, choices, T), tell what is padding.
        dropped: numbers of the teacher's layers that the student lacks.

    Returns:
        Shape (layers,).
    """
    return torch.stack([_relative(*pair) for pair in matched_states(student, teacher, inputs, dropped)])


def output_errors(
    model: PreTrainedModel, student: Any, teacher: Any, inputs: Mapping[str, Tensor], divergence: float
) -> list[Tensor]:
    """Errors of the student's outputs, if the model has any besides hidden states.

    Of logits it is their mean Kullback-Leibler divergence from the teacher's, relative to a given one; of numbers the
    relative squared error.

    Args:
        model: the teacher, which tells of what kind its outputs are.
        student: outputs of the student.
        teacher: the teacher's outputs, without gradients.
        inputs: what both were given.
        divergence: the divergence that counts as 1, in nats.
    """
    errors = []
    outputs = (outputs_of(model, returned, output_mask(inputs)) for returned in (student, teacher))
    for ours, theirs in zip(*outputs, strict=True):
        if theirs.uncertain:
            errors.append(theirs.of_seen(theirs.divergence(ours)).mean() / divergence)
        elif theirs.kind == "numbers":
            errors.append(_relative(ours.rows, theirs.rows))
    return errors


def _relative(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = (states.flatten(0, -2).float() for states in (student, teacher))  # (N, D)
    spread = (teacher - teacher.mean(dim=0)).square().sum()
    # A single row has no spread.
    return (student - teacher).square().sum() / torch.where(spread > 0, spread, teacher.square().sum() + 1e-12)


def teacher_outputs(teacher: nn.Module, inputs: Batch) -> Any:
    """A teacher's outputs with hidden states, without gradients."""
    with torch.no_grad():
        return teacher(**inputs, output_hidden_states=True)


def distillation_loss(
    student: nn.Module, teacher: PreTrainedModel, expected: Any, inputs: Batch, divergence: float = 1.0
) -> tuple[Tensor, Any]:
    """The loss of a student, and its outputs.

    It is the mean of `relative_errors`, and the mean of `output_errors` besides. A classifier narrowed in the metric of
    its logits keeps the few directions of its hidden states that these depend on: matching all directions alike would
    give them up.

    Args:
        student: the model that is trained.
        teacher: the model to match.
        expected: the teacher's outputs with hidden states.
        inputs: what both are given.
        divergence: see `output_errors`; the divergence before training weighs both parts alike.
    """
    actual = student(**inputs, output_hidden_states=True)
    loss = relative_errors(actual, expected, inputs, dropped_layers(student)).mean()
    outputs = output_errors(teacher, actual, expected, inputs, divergence)
    return (loss + torch.stack(outputs).mean() if outputs else loss), actual


class DistillationTrainer(GuardedTrainer):
    """Trains a model to match its teacher.

    Args:
        teacher: the model to match; it is moved to the student's device and not trained.
        divergence: see `distillation_loss`.
        arguments: arguments of `Trainer`.
    """

    def __init__(self, *, teacher: PreTrainedModel, divergence: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._divergence = divergence
        self._teacher = teacher.eval().to(self.args.device)

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See `distillation_loss`. The teacher computes in the precision of the training, too."""
        with self.accelerator.autocast():
            expected = teacher_outputs(self._teacher, inputs)
        loss, actual = distillation_loss(model, self._teacher, expected, inputs, self._divergence)
        return (loss, actual) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """Only the loss."""
        with torch.no_grad():
            inputs = self._prepare_inputs(inputs)
            return self.compute_loss(model, inputs).detach(), None, None
