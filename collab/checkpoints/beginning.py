"""What the healing of a command begins with, kept with its unfinished work.

Computed again, by another number of threads or on another machine, weights are rounded in other ways, and what was
measured may differ. Healing from there would be another run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.cache import fingerprint
from ..calibration.calibrate import Calibration
from ..compression.choice import Choice
from ..io.checkpoint import Checkpoint
from ..io.failures import writing
from ..io.staging import atomic_write
from ..io.unfinished import CHOSEN
from ..processes import from_main, is_main_process
from ..steps.step import plain
from ..training.work import BEGUN, LEFT, check_unused
from .transform import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """The widths that a compression chose, and the weights that training begins with.

    Attributes:
        folder: the work folder.
        digest: of what they depend on.
        restart: whether to forget what is kept.
        original: the model that the weights are made from; those that are its own are not kept.
    """

    folder: Path
    digest: str
    restart: bool
    original: PreTrainedModel

    @classmethod
    def of(cls, original: Checkpoint, moments: Calibration | None, settings: Sequence[Any], run: Run) -> Beginning:
        """The beginning of a command's training.

        Args:
            original: the model that is changed.
            moments: of its calibration; None for none.
            settings: what else the change depends on.
            run: what the command is writing.
        """
        batches = [] if moments is None else [*moments.train, *moments.held_out]
        key = [fingerprint(original.model, batches, seed=0), plain(list(settings))]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=repr).encode()).hexdigest()
        return cls(run.work, digest[:16], run.save_options.restart, original.model)

    def check(self) -> None:
        """Raises a TrainingError, before anything is computed, if the training that is unfinished began with others."""

        def check_own() -> None:
            if not self.restart and not self._file.is_file():
                check_unused(self.folder)

        from_main(check_own)

    def choice(self, choose: Callable[[], Choice]) -> Choice:
        """The choice that was made before, or else what `choose` returns, which is kept."""
        file = self.folder / CHOSEN.replace("*", self.digest)

        def read() -> Choice | None:
            if self.restart:
                file.unlink(missing_ok=True)
            try:
                return Choice.from_dict(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, KeyError, TypeError):
                return None

        choice = from_main(read)
        if choice is not None:
            logger.info("The widths are those that were chosen before.")
            return choice
        choice = choose()
        if is_main_process():
            with writing(f"Unfinished work in {self.folder}", LEFT), atomic_write(file) as partial:
                partial.write_text(json.dumps(choice.to_dict()), encoding="utf-8")
        return choice

    def take(self, model: PreTrainedModel) -> None:
        """Gives a model the weights that its training began with, or keeps its own, if it has none yet.

        Several processes, which all call this, take the same.
        """
        own = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def read_or_keep() -> dict[str, Tensor]:
            kept = None if self.restart else self._read(own)
            if kept is None:
                self._keep(own)
            return kept or {}

        for name, tensor in from_main(read_or_keep).items():
            if not torch.equal(own[name].cpu(), tensor):  # what is equal may be the original's own
                own[name].copy_(tensor)

    @property
    def _file(self) -> Path:
        return self.folder / BEGUN.replace("*", self.digest)

    def _read(self, own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The weights that are kept; None if there are none of the shapes of a model's own."""
        try:
            kept = load_file(self._file)
        except (OSError, SafetensorError):
            return None
        fits = all(name in own and own[name].shape == tensor.shape for name, tensor in kept.items())
        return kept if fits else None

    def _keep(self, own: Mapping[str, Tensor]) -> None:
        """Keeps a model's own weights, but for those that are the original's."""
        originals = dict(self.original.named_parameters())
        changed = {
            name: tensor.cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in own.items()
            if name not in originals or not torch.equal(tensor, originals[name])  # False for other shapes
        }
        for other in self.folder.glob(BEGUN) if self.restart else ():
            other.unlink(missing_ok=True)
        with writing(f"Unfinished work in {self.folder}", LEFT), atomic_write(self._file) as partial:
            save_file(changed, partial)
