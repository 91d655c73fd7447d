"""Matching another model's hidden states and logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .run import GuardedTrainer


def relative_errors(student: Any, teacher: Any, mask: Tensor | None) -> Tensor:
    """Relative squared errors of the student's hidden states after every layer, and of its logits where it has any.

    Each is ‖s - t‖²/‖t - t̄‖² over the tokens that are not padding, t̄ being the teacher's mean over them: 1 for a layer
    that knows nothing but that mean, so layers weigh alike whatever the size of their states.

    Args:
        student: outputs with hidden states.
        teacher: likewise, without gradients.
        mask: (B, T), or None where nothing is padding.

    Returns:
        Shape (layers,) or (layers + logits,).
    """
    pairs = list(zip(student.hidden_states[1:], teacher.hidden_states[1:], strict=True))
    pairs += [
        (student[name], teacher[name])
        for name in student
        if name.endswith("logits") and isinstance(student[name], Tensor)
    ]
    return torch.stack([_relative(*(_seen(one, mask) for one in pair)) for pair in pairs])


def _relative(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = student.float(), teacher.float()  # (N, D)
    spread = (teacher - teacher.mean(dim=0)).square().sum()
    # One row alone has no spread.
    return (student - teacher).square().sum() / torch.where(spread > 0, spread, teacher.square().sum() + 1e-12)


def _seen(states: Tensor, mask: Tensor | None) -> Tensor:
    """(B, T, D) → (N, D), the rows that are not padding; outputs of another shape as they are."""
    if mask is not None and states.shape[:-1] == mask.shape:
        return states[mask.bool()]
    return states.flatten(0, -2)


def answers(teacher: nn.Module, inputs: dict[str, Any]) -> Any:
    """A teacher's outputs with hidden states."""
    with torch.no_grad():
        return teacher(**inputs, output_hidden_states=True)


def distillation_loss(student: nn.Module, expected: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
    """The mean of `relative_errors` to what a teacher answers to the same inputs, and the student's outputs."""
    actual = student(**inputs, output_hidden_states=True)
    mask = inputs.get("attention_mask")
    # Several choices for each example are rows of their own inside the model.
    return relative_errors(actual, expected, None if mask is None else mask.flatten(0, -2)).mean(), actual


class DistillationTrainer(GuardedTrainer):
    """Trains a model to do what its teacher does.

    Args:
        teacher: the model to match; it is moved to the student's device and never trained.
        arguments: of `Trainer`.
    """

    def __init__(self, *, teacher: PreTrainedModel, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._teacher = teacher.eval().to(self.args.device)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See `distillation_loss`."""
        loss, actual = distillation_loss(model, answers(self._teacher, inputs), inputs)
        return (loss, actual) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        """The loss alone."""
        with torch.no_grad():
            inputs = self._prepare_inputs(inputs)
            return self.compute_loss(model, inputs).detach(), None, None
