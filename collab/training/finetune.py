"""Fine-tuning a model, original or converted, on a task."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..data.encoding import MASKED, Collate, collator, encode, mask_batch, names_of, prepare_eval
from ..data.examples import Examples
from ..data.task import Task
from ..errors import ConfigurationError
from ..evaluation.metrics import intervals, measure
from ..evaluation.predict import predictions
from ..evaluation.translation import require_sacrebleu, written_ngrams
from ..io.checkpoint import Checkpoint
from ..models.sharded import as_run, take_weights
from ..models.states import set_dropout
from ..models.weights import digest_of
from ..progress import Progress, no_progress
from ..steps.training import Finetuning
from .arguments import RunData
from .options import FinetuneOptions
from .run import Work, require_float32, run
from .trainer import GuardedTrainer
from .work import temporary_work


class TaskTrainer(GuardedTrainer):
    """A trainer that evaluates checkpoints by the task's metrics, as `collab.evaluate` computes them.

    Args:
        task: the task.
        collate_held_out: makes batches of the rows to evaluate on.
        tokenizer: the model's tokenizer.
        teacher: a model to distill from besides the labels, or None.
        distill: weight of the distillation loss.
        arguments: arguments of `Trainer`.
    """

    def __init__(
        self,
        *,
        task: Task,
        collate_held_out: Collate,
        tokenizer: Any,
        teacher: PreTrainedModel | None,
        distill: float,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._tokenizer = tokenizer
        self._task = task
        self._collate_held_out = collate_held_out
        self._teacher = None if teacher is None else teacher.eval().to(self.args.device)
        self._distill = distill

    def measured(self) -> dict[str, float]:
        """The task's metrics on all rows to evaluate on, which the processes divide."""
        rows: Any = self.eval_dataset
        unwrapped: Any = self.accelerator.unwrap_model(self.model)
        columns = predictions(self._task.kind, unwrapped, rows, self._collate_held_out, divided=True)
        return measure(self._task.kind, columns)

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task's loss, and with a teacher the distance to its outputs."""
        if self._task.kind == "masked-lm":
            inputs = mask_batch(inputs, self._tokenizer, self.args.seed, self.state.global_step)
        outputs = model(**inputs)
        loss = outputs.loss
        if self._teacher is not None:
            with torch.no_grad():
                taught = self._teacher(**{name: inputs[name] for name in inputs if name != "labels"}).logits
            loss = (1 - self._distill) * loss + self._distill * _distance(outputs.logits, taught, inputs["labels"])
        return (loss, outputs) if return_outputs else loss


def finetune(
    checkpoint: Checkpoint,
    task: Task,
    train: Examples,
    held_out: Examples,
    *,
    options: FinetuneOptions | None = None,
    teacher: Checkpoint | PreTrainedModel | None = None,
    work: Path | None = None,
    restart: bool = False,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Trains a model with a task's head, in place; it gets the weights of its best checkpoint.

    Args:
        checkpoint: a native or converted model, with a head that fits the labels, and its tokenizer.
        task: the task.
        train: training rows.
        held_out: rows to select the best checkpoint by.
        options: training settings.
        teacher: a model for the same task to distill from besides the labels.
        work: folder for unfinished work, from which an interrupted run resumes if the model is loaded anew, because
            this one has changed. It is left there at the end; delete it then. None for a temporary one.
        restart: whether to discard an unfinished run in `work`.
        progress: progress callback, called after every step.

    Returns:
        The model, with a `Finetuning` as its report.

    Raises:
        ConfigurationError: if the teacher's head has other labels, or the tokenizer does not fit the task.
        ExtraError: if a package that measures the task is not installed.
        DataError: if a label does not fit the head.
        TrainingError: if weights to train are in half precision, the loss becomes NaN or infinite, memory is short, or
            `work` holds another unfinished run.
    """
    options = options or FinetuneOptions()
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    learned_from = None if teacher is None else Checkpoint.of(teacher)
    teacher = None if learned_from is None else learned_from.model
    classes = task.kind in ("classification", "token-classification")
    if teacher is not None and classes and names_of(teacher) != names_of(model):
        raise ConfigurationError(
            f"The teacher answers with {', '.join(names_of(teacher))}, the model with {', '.join(names_of(model))}."
        )
    if teacher is not None and task.kind == "regression" and len(names_of(teacher)) != 1:
        raise ConfigurationError(
            f"The teacher answers with {len(names_of(teacher))} numbers, and a regression with one."
        )
    if task.kind == "translation":
        require_sacrebleu()  # before the training, not after it
    require_float32(parameter for parameter in model.parameters() if parameter.requires_grad)
    start = time.perf_counter()
    rows, encoded = (encode(task, examples, model, tokenizer, options.max_length) for examples in (train, held_out))
    features, collate = prepare_eval(task, model, tokenizer, encoded, options.run.seed)
    key = f"finetune {task} {options} {digest_of(teacher) if teacher is not None else None}"
    data = RunData(rows, features, collator(task, model, tokenizer), task.best_by, task.greater_is_better)
    trained = as_run(model, options.run.shard, options.run.device)
    if teacher is not None:
        teacher = as_run(teacher, options.run.shard, options.run.device)
    with set_dropout(trained, options.dropout), temporary_work(work) as folder:
        result = run(
            TaskTrainer,
            trained,
            options.run,
            data,
            Work(folder, restart, key),
            progress=progress,
            task=task,
            collate_held_out=collate,
            tokenizer=tokenizer,
            teacher=teacher,
            distill=options.distill,
        )
    if trained is not model:
        take_weights(model, dict(trained.named_parameters()))
    columns = predictions(task.kind, model, features, collate)
    if task.kind == "translation":
        columns |= written_ngrams(model, tokenizer, held_out.texts, options.max_length, progress)
    settings = asdict(options)
    settings["run"] |= {"precision": result.start.precision}
    masks = {"masked": MASKED} if task.kind == "masked-lm" else {}
    report = Finetuning(
        task=task.kind,
        hub_name=task.hub_name,
        data={"train": train.name, "rows": len(rows), "eval": held_out.name, "eval_rows": len(features)} | masks,
        settings=settings,
        labels=names_of(model) if classes else [],
        best_by=task.best_by,
        before=result.start.before,
        metrics=intervals(task.kind, columns),
        best_step=result.best_step,
        steps=result.steps,
        evaluations=result.history,
        seconds=time.perf_counter() - start,
        teacher=None if learned_from is None else learned_from.name,
    )
    return checkpoint.then(report)


def _distance(logits: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
    """The distance of a model's outputs to its teacher's: squared difference of numbers, divergence of classes."""
    if logits.shape[-1] == 1:
        return functional.mse_loss(logits.float(), taught.float())
    divergence = functional.kl_div(
        logits.float().log_softmax(-1), taught.float().log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)  # (B,) or (B, T)
    if divergence.shape == labels.shape and divergence.ndim > 1:
        seen = labels >= 0
        return (divergence * seen).sum() / seen.sum().clamp(min=1)
    return divergence.mean()
