"""Loading a model with its tokenizer and unused weights, native or converted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PreTrainedModel

from ..errors import CheckpointError, DataError, UnsupportedArchitectureError, WeightsError, first_line
from ..models.families import Family, families, refuse_unsupported
from ..models.inputs import input_kind
from .options import LoadOptions
from .read import Source, check_weight_files, read_config, read_model, read_tensors, resolve_source

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, with what its folder holds besides.

    Attributes:
        source: where it was read from.
        model: the model in evaluation mode, in the dtype of the checkpoint.
        missing: names of weights that the checkpoint lacks, initialized at random.
        unused: checkpoint weights that the model's class does not use (for example a pooler beside a language-modelling
            head), saved with the model again.
        notes: notes for the user.
        new_tokenizer: a tokenizer that takes the place of the one in the folder; None for none.
        trust_remote_code: whether transformers may run a tokenizer's code that comes with the checkpoint.
    """

    source: Source
    model: PreTrainedModel
    missing: list[str] = field(default_factory=list)
    unused: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trust_remote_code: bool = False
    new_tokenizer: Any | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, processor: Any | None = None) -> Checkpoint:
        """Wraps a model in memory, with its tokenizer or image processor, as if it had just been loaded."""
        name = model.name_or_path or type(model).__name__
        checkpoint = cls(Source(name, Path(name)), model)
        checkpoint.__dict__["processor"] = processor  # a cached property is stored under its name
        return checkpoint

    @cached_property
    def processor(self) -> Any | None:
        """The tokenizer, image processor or feature extractor; None if there is none or it does not load."""
        if self.new_tokenizer is not None:
            return self.new_tokenizer
        loaders = {"text": AutoTokenizer, "images": AutoImageProcessor, "audio": AutoFeatureExtractor}
        loader: Any = loaders[input_kind(self.model)]
        try:
            return loader.from_pretrained(
                self.source.folder, trust_remote_code=self.trust_remote_code, local_files_only=True
            )
        except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
            logger.info("No tokenizer, image processor or feature extractor: %s", error)
            return None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; DataError if there is none."""
        if self.processor is None:
            raise DataError(f"{self.source.name} has no tokenizer that loads. Add the tokenizer's files to the folder.")
        return self.processor

    def require_head(self, kind: str) -> None:
        """Raises a DataError if the head for a kind of task is missing from the checkpoint."""
        head = [name for name in self.missing if not name.startswith(f"{self.model.base_model_prefix}.")]
        if head:
            raise DataError(
                f"{self.source.name} has no head for {kind}: {', '.join(head[:3])} would be random. Fine-tune it first."
            )


def load(name: str, options: LoadOptions | None = None, *, auto_class: Any = None) -> Checkpoint:
    """Reads a native or a converted model.

    Args:
        name: a folder or a Hub id.
        options: load options.
        auto_class: the Auto class to load with; None for the class that the config names.

    Returns:
        The model in evaluation mode, in the dtype of the checkpoint.

    Raises:
        CheckpointError: if it is missing, incomplete or damaged, or has no class with such a head.
    """
    options = options or LoadOptions()
    return load_source(resolve_source(name, options.revision), options, auto_class=auto_class)


def load_source(
    source: Source,
    options: LoadOptions,
    *,
    auto_class: Any = None,
    config_changes: dict[str, Any] | None = None,
    new_head: bool = False,
    seed: int = 0,
) -> Checkpoint:
    """Reads a native or a converted model from where it is, if wanted with another head.

    Args:
        source: where it is.
        options: load options.
        auto_class: as in `load`.
        config_changes: values of the config to replace, such as the labels of a new head.
        new_head: whether to initialize everything outside the base model at random.
        seed: random seed for weights that the checkpoint lacks.

    Raises:
        CheckpointError: as `load`.
    """
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
    return Checkpoint(
        source,
        model.eval(),
        sorted(info["missing_keys"]),
        read_tensors(files, info["unexpected_keys"]) if auto_class is None else {},
        trust_remote_code=options.trust_remote_code,
    )


def load_native(source: Source, options: LoadOptions | None = None, *, seed: int = 0) -> Checkpoint:
    """Reads a native model with the head that its config names, in the dtype of the checkpoint.

    Args:
        source: where it is.
        options: load options.
        seed: random seed for weights that the checkpoint lacks, such as a pooler that was never trained.

    Raises:
        CheckpointError: if a file is missing or damaged, or the weights are a pickle of more than plain weights.
        UnsupportedArchitectureError: if it is not a model that collab converts.
        AlreadyConvertedError: if it is collaborative already.
        WeightsError: if attention weights are missing.
    """
    config = read_config(source.folder)
    refuse_unsupported(config["model_type"])
    family = families()[config["model_type"]]
    notes = []
    if config.get("auto_map"):
        notes.append(
            "The checkpoint comes with code of its own, which was not run; it was read as a native "
            f"{config['model_type']} model."
        )
    native_class = _native_class(config, family)
    weights = check_weight_files(source.folder)
    model, info = read_model(native_class, source, seed, dtype="auto")
    missing = sorted(info["missing_keys"])
    layers = family.attention_layers(model)
    for name in missing:
        if any(name.startswith(f"{layer}.") for layer in layers):
            raise WeightsError(f"{name} is not in the checkpoint, so there is no attention to convert.")
    if missing:
        notes.append(f"Not in the checkpoint, so initialized at random (seed {seed}): {', '.join(missing)}.")
    unused = read_tensors(weights, info["unexpected_keys"])
    if unused:
        some = ", ".join(sorted(unused)[:3])
        notes.append(
            f"Carried over as they are, because the model has no place for them: {len(unused)} weights of the "
            f"checkpoint ({some}{', …' if len(unused) > 3 else ''})."
        )
    for note in notes:
        logger.warning(note)
    trusted = (options or LoadOptions()).trust_remote_code
    return Checkpoint(source, model, missing, unused, tuple(notes), trusted)


def _native_class(config: dict[str, Any], family: Family) -> Any:
    """The native class to load with `from_pretrained`."""
    natives = {model.native_class().__name__: model.native_class() for model in family.models}
    architectures = config.get("architectures") or [family.base.native_class().__name__]
    if architectures[0] not in natives:
        raise UnsupportedArchitectureError(
            f"The checkpoint is a {architectures[0]}, which cannot be converted. For {family.native_model_type} "
            f"models, these can: {', '.join(natives)}."
        )
    return natives[architectures[0]]


def config_of(source: Source) -> Any:
    """A model's config, native or converted.

    Raises:
        CheckpointError: if transformers cannot read it.
    """
    try:
        return AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"The config of {source.name} could not be read: {first_line(error)}") from error


def model_class_of(config: dict[str, Any], name: str) -> Any:
    """The model class that a config names; the base model's if it names none."""
    for family in families().values():
        own = {model.__name__: model for model in family.models}
        if family.config_class.model_type == config["model_type"]:
            return own.get((config.get("architectures") or [""])[0], family.base)
    architectures = config.get("architectures") or []
    if not architectures:
        return transformers.AutoModel
    model_class = getattr(transformers, architectures[0], None)
    if model_class is None:
        raise CheckpointError(f"{name} is a {architectures[0]}, which transformers does not have.")
    return model_class
