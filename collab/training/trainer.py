"""A trainer that stops when the loss becomes NaN or infinite, and keeps checkpoints that are known to be complete."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import SCHEDULER_NAME

from ..data.batches import Batch
from ..errors import ExtraError, TrainingError
from ..io.unfinished import WHOLE, drop_other_checkpoints, newest_checkpoint
from ..models.sharded import is_sharded
from ..progress import Progress
from .sampling import LengthSampler
from .shards import load_shards, save_shards

logger = logging.getLogger(__name__)

if importlib.util.find_spec("accelerate") is None:
    raise ExtraError("Training needs the package accelerate: pip install 'collab[train]'.")


class GuardedTrainer(Trainer):
    """A `Trainer` that stops when the loss becomes NaN or infinite, before it spoils the weights.

    Args:
        sampler: the order of the rows.
        shard: whether checkpoints are written by all processes, each its part of them.
        arguments: arguments of `Trainer`.
    """

    loss_is_scaled_for_ga = False

    def __init__(self, *, sampler: LengthSampler, shard: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sampler = sampler
        self._shard = shard
        # As for a model that transformers sharded: it is not wrapped for several processes.
        self.is_distributed_loading_by_transformers = is_sharded(self._trained)
        self.model_accepts_loss_kwargs = False  # our losses are means over the rows of a part

    @property
    def _trained(self) -> nn.Module:
        """The model, as it is trained."""
        assert isinstance(self.model, nn.Module)
        return self.model

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
        return self._sampler

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: transformers goes through all parameters for it, in every pass, and nothing here reports it."""
        return 0

    def measured(self) -> dict[str, float]:
        """The metrics on all rows to evaluate on, the same in every process."""
        raise NotImplementedError

    def evaluate(self, *arguments: Any, metric_key_prefix: str = "eval", **named: Any) -> dict[str, float]:
        """Logs the metrics on all rows to evaluate on, and tells the callbacks."""
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.measured().items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Saves the model; what processes share is saved with the state of the optimizer.

        The folder must be there at once: by it `Trainer` knows, in every process, that the best checkpoint exists.
        """
        if self._shard:
            Path(str(output_dir)).mkdir(parents=True, exist_ok=True)
        else:
            super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._shard:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shards(self._trained, self.optimizer, Path(output_dir))
        if self.args.should_save and self.lr_scheduler is not None:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self._shard:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        load_shards(self._trained, None, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self._shard or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load_shards(self._trained, self.optimizer, Path(checkpoint))
        assert self.lr_scheduler is not None
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))

    def _load_best_model(self) -> None:
        if not self._shard:
            super()._load_best_model()
            return
        load_shards(self._trained, None, Path(str(self.state.best_model_checkpoint)))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warns of weights that a checkpoint lacks, but for tied ones, which are in it under one name."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def training_step(self, model: Any, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """One step; raises a TrainingError if its loss is NaN or infinite."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        bad = self.accelerator.reduce((~loss.isfinite()).any().float(), reduction="sum")  # in any process
        if float(bad) > 0:
            kept = newest_checkpoint(Path(str(self.args.output_dir)))
            raise TrainingError(
                f"The loss is not a number (NaN or infinite) at step {self.state.global_step + 1}. "
                f"{f'The last good checkpoint is {kept}. ' if kept else ''}Lower learning_rate, or use precision "
                "float32 or bfloat16; then start again with restart=True (--restart)."
            )
        return loss


class Marker(TrainerCallback):
    """Marks complete checkpoints, and has the last step evaluated and saved."""

    def __init__(self, sampler: LengthSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # transformers and accelerate do not set it in several processes.
        self._sampler.set_epoch(state.global_step // self._sampler.steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            work, name = Path(args.output_dir), f"checkpoint-{state.global_step}"
            (work / name / "training_args.bin").unlink(missing_ok=True)  # an unused pickle
            (work / name / WHOLE).touch()
            drop_other_checkpoints(work, name, state.best_model_checkpoint)


class Reporter(TrainerCallback):
    """Reports the steps, with the metrics of the last evaluation."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: dict[str, float] = {}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self._last = metrics_in(metrics or {})
        logger.info("step %d: %s", state.global_step, self._last)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in self._last.items())
            self._progress(
                f"training; on the held-out rows {shown}" if shown else "training", state.global_step, state.max_steps
            )


def metrics_in(logged: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation, without its timings."""
    dropped = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
    evaluated = {name.removeprefix("eval_"): value for name, value in logged.items() if name.startswith("eval_")}
    return {name: float(value) for name, value in evaluated.items() if name not in dropped}
