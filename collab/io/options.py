"""Options for loading and saving a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypedDict

from ..errors import ConfigurationError
from ..progress import Progress

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""The name of a model on the Hub."""


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model.

    Attributes:
        revision: branch, tag or commit on the Hub.
        trust_remote_code: whether transformers may run a tokenizer's code that comes with the checkpoint. A model's own
            code is never run: the model is loaded as transformers' class of its type, or as collab's converted class.
    """

    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class SaveOptions:
    """Options for saving a model.

    Attributes:
        overwrite: whether to replace what collab wrote there earlier; other files are never overwritten.
        restart: whether to discard unfinished training for the same output instead of resuming it.
        max_shard_size: size of a weights file at most, for example ``"5GB"``; a larger model is split.
        base_model: Hub id of the original, for the model card; None for that of the source, or else what the source's
            card names.
        command: the command line, for report and card.

    Raises:
        ConfigurationError: if `max_shard_size` is not a size, or `base_model` no Hub id.
    """

    overwrite: bool = False
    restart: bool = False
    max_shard_size: str = "5GB"
    base_model: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"0*[1-9]\d*([KMGT]i?B)", self.max_shard_size, flags=re.IGNORECASE):
            raise ConfigurationError(f"max_shard_size {self.max_shard_size!r} is not a size; use 500MB or 5GB, say.")
        if self.base_model is not None and not HUB_ID.fullmatch(self.base_model):
            raise ConfigurationError(f"base_model {self.base_model!r} is not a Hub id such as user/model or model.")


class TransformOptions(TypedDict, total=False):
    """Arguments of every function that reads a model from one folder and writes it to another.

    Attributes:
        load_options: how to read the model.
        save_options: how to write the result, and whether to resume unfinished training.
        progress: called before every phase, and during it where it takes long.
    """

    load_options: LoadOptions | None
    save_options: SaveOptions | None
    progress: Progress
