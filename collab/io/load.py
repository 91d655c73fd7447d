"""Loading a model to train or to measure: an original or a converted one, with its tokenizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedModel

from ..errors import CheckpointError, DataError, first_line
from ..models.families import families
from .read import Source, check_weight_files, read_config, read_model, read_tensors, resolve_source

logger = logging.getLogger(__name__)


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
class Loaded:
    """A model as it lies in its folder.

    Attributes:
        source: where from.
        model: in evaluation mode.
        processor: its tokenizer or image processor; None where there is none.
        missing: weights that the folder does not hold, initialized at random.
        unused: weights that the class which the config names has no place for, to be kept.
    """

    source: Source
    model: PreTrainedModel
    processor: Any | None
    missing: list[str] = field(default_factory=list)
    unused: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; DataError if there is none."""
        if self.processor is None:
            raise DataError(f"{self.source.name} has no tokenizer that loads. Put its files into the folder.")
        return self.processor

    def require_head(self, kind: str) -> None:
        """Raises a DataError if the head for a kind of task would be random."""
        head = [one for one in self.missing if not one.startswith(f"{self.model.base_model_prefix}.")]
        if head:
            raise DataError(
                f"{self.source.name} has no head for {kind}: {', '.join(head[:3])} would be random. Fine-tune it first."
            )


def load(
    name: str,
    reading: LoadOptions | None = None,
    *,
    auto_class: Any = None,
    config_changes: dict[str, Any] | None = None,
    new_head: bool = False,
    seed: int = 0,
) -> Loaded:
    """Reads a native or a converted model.

    Args:
        name: a folder or a Hub id.
        reading: how to read it.
        auto_class: the Auto class to load with; None for the class that the config names.
        config_changes: values of the config to replace, such as the labels of a new head.
        new_head: let everything outside the base model start anew at random.
        seed: of the weights that the checkpoint lacks.

    Raises:
        CheckpointError: if it is not there, incomplete or damaged, or has no class with such a head.
    """
    reading = reading or LoadOptions()
    source = resolve_source(name, reading.revision)
    raw = read_config(source.folder)
    files = check_weight_files(source.folder)
    config = config_of(source)
    for key, value in (config_changes or {}).items():
        setattr(config, key, value)
    arguments = {"trust_remote_code": False} if auto_class is not None else {}
    model, info = read_model(
        auto_class or model_class_of(raw, source.name), source, seed, new_head, config=config, dtype="auto", **arguments
    )
    if new_head:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = type(model)(config)
        fresh.base_model.load_state_dict(model.base_model.state_dict())
        model = fresh.to(model.dtype)  # type: ignore[arg-type]
    return Loaded(
        source,
        model.eval(),
        load_processor(source, model, reading.trust_remote_code),
        sorted(info["missing_keys"]),
        read_tensors(files, info["unexpected_keys"]) if auto_class is None else {},
    )


def config_of(source: Source) -> Any:
    """A model's config, native or converted.

    Raises:
        CheckpointError: if transformers cannot read it.
    """
    try:
        return AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"The config of {source.name} could not be read: {first_line(error)}") from error


def load_processor(source: Source, model: PreTrainedModel, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer or image processor in a model's folder; None where there is none, or it does not load."""
    loader: Any = AutoTokenizer if model.main_input_name == "input_ids" else AutoImageProcessor
    try:
        return loader.from_pretrained(source.folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        logger.info("No tokenizer or image processor: %s", error)
        return None


def model_class_of(config: dict[str, Any], name: str) -> Any:
    """The model class that a config names, or the base model's where it names none."""
    for family in families().values():
        own = {model.__name__: model for model in family.models}
        if family.config_class.model_type == config["model_type"]:
            return own.get((config.get("architectures") or [""])[0], family.base)
    architectures = config.get("architectures") or []
    if not architectures:
        return transformers.AutoModel
    found = getattr(transformers, architectures[0], None)
    if found is None:
        raise CheckpointError(f"{name} is a {architectures[0]}, which transformers does not have.")
    return found
