"""Distillation: matching another model's hidden states and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from ..data.batches import Batch, batches_by_length, evenly_spaced
from ..models.assembly import in_dtype
from ..models.layers import ALL_THERE, Dropped, dropped_layers
from ..models.outputs import entries_of, matched_states, outputs_of
from ..models.padding import output_mask
from ..models.sharded import is_sharded
from ..models.states import evaluating
from ..processes import dealt, processes, summed
from .muon import Muon, input_scales
from .options import Optimizer
from .trainer import GuardedTrainer

_ALIKE, _NUMBERS_ALIKE = 1e-6, 1e-2
"""States, or numbers that a model answers with, whose spread is less of their squares have none to be relative to."""

_KEPT = 2**27
"""Entries of the teacher's outputs for held-out rows that are kept at most; a quarter of a gigabyte in bfloat16."""

_SCALED_BY = 512
"""Training rows whose states scale the inputs of layers (`input_scales`)."""


def relative_errors(
    student: Any, teacher: Any, inputs: Mapping[str, Tensor], dropped: Dropped = ALL_THERE, *, divided: bool = False
) -> Tensor:
    """Relative squared errors of the student's hidden states after every layer.

    Each is ‖s - t‖²/‖t - t̄‖² over the tokens that are not padding, with t̄ the teacher's mean over them. It is 1 for a
    layer that predicts only that mean, so layers have equal weight whatever the size of their states.

    Args:
        student: outputs with hidden states.
        teacher: the teacher's outputs with hidden states, without gradients.
        inputs: what both were given, whose masks, (B, T) or (B, choices, T), tell what is padding.
        dropped: the teacher's layers that the student lacks.
        divided: whether the processes have a part each of the rows. The mean of their errors, and of the gradients, is
            then that of all rows.

    Returns:
        Shape (layers,).
    """
    return _relative(list(matched_states(student, teacher, inputs, dropped)), _ALIKE, divided)


def output_errors(
    model: PreTrainedModel,
    student: Any,
    teacher: Any,
    inputs: Mapping[str, Tensor],
    divergence: float,
    *,
    divided: bool = False,
) -> Tensor:
    """Errors of the student's outputs besides hidden states.

    Of logits it is their mean Kullback-Leibler divergence from the teacher's, relative to a given one; of numbers the
    relative squared error.

    Args:
        model: the teacher, which tells of what kind its outputs are.
        student: outputs of the student.
        teacher: the teacher's outputs, without gradients.
        inputs: what both were given.
        divergence: the divergence that counts as 1, in nats.
        divided: see `relative_errors`.

    Returns:
        Shape (outputs,); empty for a model without logits.
    """
    outputs = (outputs_of(model, returned, output_mask(inputs)) for returned in (student, teacher))
    pairs = list(zip(*outputs, strict=True))
    numbers = [(ours.rows, theirs.rows) for ours, theirs in pairs if theirs.kind == "numbers"]
    divergences = [theirs.of_seen(theirs.divergence(ours)) for ours, theirs in pairs if theirs.uncertain]
    errors = [each.sum() / _mean_count(each, divided) / divergence for each in divergences]
    errors += list(_relative(numbers, _NUMBERS_ALIKE, divided)) if numbers else []
    return torch.stack(errors) if errors else torch.zeros(0)


def _mean_count(values: Tensor, divided: bool) -> Tensor:
    """The number of values, or the mean of the processes' numbers."""
    count = torch.tensor(float(values.numel()), device=values.device)
    return summed(count) / processes() if divided else count


def _relative(pairs: Sequence[tuple[Tensor, Tensor]], alike: float, divided: bool) -> Tensor:
    """Relative squared errors of pairs of a student's and a teacher's states, (..., D) each; shape (pairs,).

    Errors are relative to the squares themselves of states whose spread is less than a part `alike` of them, as that
    of a single row.
    """
    rows = [tuple(states.flatten(0, -2).float() for states in pair) for pair in pairs]  # (N, D) each
    spreads, squares = (_divided_spreads if divided else _spreads)([theirs for _, theirs in rows])
    spreads = torch.where(spreads > alike * squares, spreads, squares + 1e-12)
    distances = [(ours - theirs).square().sum() for ours, theirs in rows]
    return torch.stack([distance / spread for distance, spread in zip(distances, spreads, strict=True)])


def _spreads(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """‖t - t̄‖² and ‖t‖² of rows t, (N, D) each; shape (pairs,)."""
    spreads = torch.stack([(states - states.mean(dim=0)).square().sum() for states in rows])
    return spreads, torch.stack([states.square().sum() for states in rows])


def _divided_spreads(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """`_spreads` of the rows of all processes together, divided by their number."""
    widths = [states.shape[1] for states in rows]
    sums = summed(torch.cat([states.double().sum(0) for states in rows]))
    counts = summed(torch.tensor([len(states) for states in rows], device=sums.device)).tolist()
    means = [part / count for part, count in zip(sums.split(widths), counts, strict=True)]  # (D,) each
    squares = summed(
        torch.stack(
            [(states - mean).square().sum() for states, mean in zip(rows, means, strict=True)]
            + [states.double().square().sum() for states in rows]
        )
    )
    spreads, sizes = (squares / processes()).float().chunk(2)
    return spreads, sizes


@dataclass(frozen=True)
class Distillation:
    """What a student is trained to match, and its loss.

    Attributes:
        teacher: the model to match.
        divergence: see `output_errors`; the divergence before training weighs hidden states and outputs alike.
    """

    teacher: PreTrainedModel
    divergence: float = 1.0

    def expected(self, inputs: Batch) -> Any:
        """The teacher's outputs with hidden states, without gradients."""
        with torch.no_grad():
            return self.teacher(**inputs, output_hidden_states=True)

    def loss(self, student: nn.Module, expected: Any, inputs: Batch, *, divided: bool = False) -> tuple[Tensor, Any]:
        """The loss of a student, and its outputs.

        It is the mean of `relative_errors`, and the mean of `output_errors` besides. A classifier narrowed in the
        metric of its logits keeps the few directions of its hidden states that these depend on: matching all directions
        alike would give them up.

        Args:
            student: the model that is trained, as it is or wrapped for several processes.
            expected: the teacher's outputs with hidden states.
            inputs: what both are given.
            divided: see `relative_errors`.
        """
        actual = student(**inputs, output_hidden_states=True)
        unwrapped = student.module if isinstance(student, DistributedDataParallel) else student
        loss = relative_errors(actual, expected, inputs, dropped_layers(unwrapped), divided=divided).mean()
        outputs = output_errors(self.teacher, actual, expected, inputs, self.divergence, divided=divided)
        return (loss + outputs.mean() if len(outputs) else loss), actual


class DistillationTrainer(GuardedTrainer):
    """Trains a model to match its teacher.

    Args:
        distillation: the model to match, which is moved to the student's device and not trained, and the loss.
        optimizer: what trains the model.
        arguments: arguments of `Trainer`.
    """

    def __init__(self, *, distillation: Distillation, optimizer: Optimizer, **arguments: Any) -> None:
        arguments["args"].ddp_find_unused_parameters = True  # a pooler, for example, has no part in the loss
        super().__init__(**arguments)
        self._own_optimizer = optimizer == "muon"
        teacher = distillation.teacher.eval().to(self.args.device)
        if self.args.bf16 and not is_sharded(teacher):  # autocast would cast its weights at every step
            teacher = in_dtype(teacher, torch.bfloat16)
        self._distillation = replace(distillation, teacher=teacher)
        self._known: dict[int, Any] = {}  # what it returned for held-out rows, by batch
        self._room = 0 if is_sharded(teacher) else _KEPT  # the processes run a shared teacher at the same time
        self._scales = self._input_scales() if self._own_optimizer else {}  # before a resumed run loads other weights

    def _input_scales(self) -> dict[Tensor, Tensor]:
        """See `input_scales`; all processes see the same rows."""
        rows: Any = self.train_dataset
        size = self.args.per_device_train_batch_size * processes()
        batches = batches_by_length(self.data_collator, evenly_spaced(rows, _SCALED_BY), size)
        with self.compute_loss_context_manager():
            return input_scales(self._trained, map(self._prepare_inputs, batches))

    def get_optimizer_cls_and_kwargs(self, args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """The optimizer, as `Trainer` creates it."""
        if not self._own_optimizer:
            return super().get_optimizer_cls_and_kwargs(args, model)
        dtype = torch.bfloat16 if args.bf16 else torch.float32
        return Muon, {"lr": args.learning_rate, "dtype": dtype, "scales": self._scales}

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See `Distillation.loss`. The teacher computes in the precision of the training, too."""
        loss, actual = self._loss(model, inputs, self._expected(inputs))
        return (loss, actual) if return_outputs else loss

    def _expected(self, inputs: Batch) -> Any:
        with self.accelerator.autocast():
            return self._distillation.expected(inputs)

    def _loss(self, model: nn.Module, inputs: Batch, expected: Any) -> tuple[Tensor, Any]:
        divided = processes() > 1 and model.training
        return self._distillation.loss(model, expected, inputs, divided=divided)

    def measured(self) -> dict[str, float]:
        """The mean loss of the held-out rows, whose batches the processes divide, whatever their number."""
        rows: Any = self.eval_dataset
        size = self.args.per_device_eval_batch_size
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        losses = torch.zeros(len(parts), device=self.args.device)
        model = self.accelerator.unwrap_model(self.model).to(self.args.device)
        with evaluating(model), torch.no_grad(), self.compute_loss_context_manager():
            for number, part, counts in dealt(parts, evenly=is_sharded(model)):
                inputs = self._prepare_inputs(self.data_collator(part))
                loss, _ = self._loss(model, inputs, self._expected_of(number, inputs))
                losses[number] = loss if counts else 0.0
        of_rows = summed(losses).repeat_interleave(torch.tensor([*map(len, parts)], device=losses.device))
        return {"loss": float(of_rows.cpu().numpy().mean())}

    def _expected_of(self, number: int, inputs: Batch) -> Any:
        """What the teacher returns for a batch of held-out rows, which is kept for the next time if there is room."""
        if number in self._known:
            return self._known[number]
        expected = self._expected(inputs)
        entries = entries_of(expected)
        if entries is not None and entries <= self._room:
            self._known[number] = expected
            self._room -= entries
        return expected
