"""How to read a model, how to write it, and how work tells how far it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConfigurationError

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

Progress = Callable[[str, int, int | None], None]
"""Called as work goes on with what is being done, how much of it is done, and how much there is in all (None where that
is not known)."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class LoadOptions:
    """How to read a model.

    Attributes:
        revision: branch, tag or commit on the Hub.
        trust_remote_code: let transformers run a tokenizer's code that comes with the checkpoint. A model's own code is
            never run: it is read as the native model of its type, or as the converted one that collab has.
    """

    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class SaveOptions:
    """How to write a model.

    Attributes:
        overwrite: replace what collab wrote there earlier; anything else is never overwritten.
        restart: forget unfinished training of the same output, instead of going on with it.
        max_shard_size: largest weights file, for example ``"5GB"``; a larger model is written in several.
        base_model: name of the original for the model card; None for the name of the source.
        command: the command line, for report and card.

    Raises:
        ConfigurationError: if the size is not one.
    """

    overwrite: bool = False
    restart: bool = False
    max_shard_size: str = "5GB"
    base_model: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"0*[1-9]\d*([KMGT]i?B)", self.max_shard_size, flags=re.IGNORECASE):
            raise ConfigurationError(f"{self.max_shard_size!r} is not a size; write for example 500MB or 5GB.")
