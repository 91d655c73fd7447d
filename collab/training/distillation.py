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


def relative_errors(
    model: PreTrainedModel, student: Any, teacher: Any, inputs: Mapping[str, Tensor], dropped: Sequence[int] = ()
) -> Tensor:
    """Relative squared errors of the student's hidden states after every layer, and of its logits if it has any.

    Each is ‖s - t‖²/‖t - t̄‖² over the tokens that are not padding, with t̄ the teacher's mean over them. It is 1 for a
    layer that predicts only that mean, so layers have equal weight whatever the size of their states.

    Args:
        model: the teacher, which tells of what kind its logits are.
        student: outputs with hidden states.
        teacher: the teacher's outputs with hidden states, without gradients.
        inputs: what both were given, whose masks, (B, T) or (B, choices, T), tell what is padding.
        dropped: numbers of the teacher's layers that the student lacks.

    Returns:
        Shape (layers,) or (layers + logits,).
    """
    pairs = list(matched_states(student, teacher, inputs, dropped))
    logits = (outputs_of(model, returned, output_mask(inputs)) for returned in (student, teacher))
    pairs += [(ours.rows, theirs.rows) for ours, theirs in zip(*logits, strict=True) if ours.kind != "states"]
    return torch.stack([_relative(*pair) for pair in pairs])


def _relative(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = (states.flatten(0, -2).float() for states in (student, teacher))  # (N, D)
    spread = (teacher - teacher.mean(dim=0)).square().sum()
    # A single row has no spread.
    return (student - teacher).square().sum() / torch.where(spread > 0, spread, teacher.square().sum() + 1e-12)


def teacher_outputs(teacher: nn.Module, inputs: Batch) -> Any:
    """A teacher's outputs with hidden states, without gradients."""
    with torch.no_grad():
        return teacher(**inputs, output_hidden_states=True)


def distillation_loss(student: nn.Module, teacher: PreTrainedModel, expected: Any, inputs: Batch) -> tuple[Tensor, Any]:
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
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See `distillation_loss`. The teacher computes in the precision of the training, too."""
        with self.accelerator.autocast():
            expected = teacher_outputs(self._teacher, inputs)
        loss, actual = distillation_loss(model, self._teacher, expected, inputs)
        return (loss, actual) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """Only the loss."""
        with torch.no_grad():
            inputs = self._prepare_inputs(inputs)
            return self.compute_loss(model, inputs).detach(), None, None
