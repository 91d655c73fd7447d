"""Loading a model with its tokenizer and unused weights, native or converted."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, GPT2ForSequenceClassification, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GenericForSequenceClassification

from ..errors import CheckpointError, UnsupportedArchitectureError, WeightsError
from ..modeling.collab_attention import CollaborativeAttention
from ..models.assembly import in_dtype
from ..models.families import Family, families, native_type, refuse_unsupported
from ..models.weights import check_finite
from ..steps.history import History
from .checkpoint import Checkpoint, processor_of
from .failures import reading
from .history import read_history
from .options import LoadOptions
from .read import (
    GRAPH_OF,
    Source,
    check_weight_files,
    check_weights_for,
    read_config,
    read_model,
    read_modules,
    read_tensors,
    resolve_source,
)

logger = logging.getLogger(__name__)

# Values of settings that change how a model runs, and that transformers finds out about only then.
_FLAGS: dict[str, tuple[Any, ...]] = {
    "return_dict": (True, None),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "use_cache", "is_decoder"), (True, False, None)),
    "chunk_size_feed_forward": tuple(range(10_000)),
}
# Sizes that every config has, under this or a name that stands for it, and the most that they can sensibly be.
_SIZES = {"num_hidden_layers": 1000, "num_attention_heads": 100_000, "hidden_size": 2**31}


def load(
    name: str, options: LoadOptions | None = None, *, auto_class: Any = None, with_processor: bool = True
) -> Checkpoint:
    """Reads a native or a converted model.

    Args:
        name: a folder or a Hub id.
        options: load options.
        auto_class: the Auto class to load with; None for the class that the config names.
        with_processor: whether to read its tokenizer or processor.

    Returns:
        The model in evaluation mode, in the dtype of the checkpoint.

    Raises:
        CheckpointError: if it is missing, incomplete or damaged, or has no class with such a head.
    """
    options = options or LoadOptions()
    source = resolve_source(name, options.revision)
    return load_source(source, options, auto_class=auto_class, with_processor=with_processor)


def load_source(
    source: Source,
    options: LoadOptions,
    *,
    auto_class: Any = None,
    config_changes: dict[str, Any] | None = None,
    new_head: bool = False,
    seed: int = 0,
    with_processor: bool = True,
) -> Checkpoint:
    """Reads a native or a converted model from where it is, if wanted with another head.

    Args:
        source: where it is.
        options: load options.
        auto_class: as in `load`.
        config_changes: values of the config to replace, such as the labels of a new head.
        new_head: whether to initialize everything outside the base model at random.
        seed: random seed for weights that the checkpoint lacks.
        with_processor: as in `load`.

    Raises:
        CheckpointError: as `load`.
    """
    raw = read_config(source.folder)
    files = check_weight_files(source.folder)
    config = config_of(source)
    model_class = model_class_of(raw, source.name)
    if auto_class is not None and type(config) not in auto_class._model_mapping:
        raise CheckpointError(
            f"{source.name} is of type {config.model_type}, and transformers has no {auto_class.__name__} of that "
            "type. Choose another task."
        )
    history = _check_contents(source, model_class, config, files)
    for key, value in (config_changes or {}).items():
        setattr(config, key, value)
    arguments = {"trust_remote_code": False} if auto_class is not None else {}
    model, info = read_model(
        auto_class or model_class, source, files, seed, new_head, config=config, dtype="auto", **arguments
    )
    if new_head:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = type(model)(config)
        fresh.base_model.load_state_dict(model.base_model.state_dict())
        model = in_dtype(fresh, model.dtype)
    check_finite(model)
    _check_attention(model, info["missing_keys"])
    trusted = options.trust_remote_code
    needed = with_processor or _needs_padding(model)
    processor = processor_of(model, source.folder, trusted) if needed else None
    _name_padding(model, processor, source.name)
    return Checkpoint(
        model.eval(),
        processor,
        source,
        history,
        missing=sorted(info["missing_keys"]),
        unused=read_tensors(files, info["unexpected_keys"])[0] if auto_class is None else {},
        trust_remote_code=trusted,
    )


def _check_attention(model: PreTrainedModel, missing: Iterable[str]) -> None:
    """Raises a WeightsError if a weight of an attention layer is missing, which would be random."""
    family = families().get(model.config.model_type)
    native = () if family is None else family.base.attention_classes
    modules = model.named_modules()
    layers = [name for name, module in modules if isinstance(module, CollaborativeAttention) or type(module) in native]
    for name in missing:
        if any(name.startswith(f"{layer}.") for layer in layers):
            raise WeightsError(f"{name} is not in the checkpoint, so there is no attention to convert or expand.")


def _needs_padding(model: PreTrainedModel) -> bool:
    """Whether a model is a classifier that finds the last token of a row by the padding, and does not know that."""
    last_token = isinstance(model, GenericForSequenceClassification | GPT2ForSequenceClassification)
    return last_token and model.config.pad_token_id is None


def _name_padding(model: PreTrainedModel, processor: Any, name: str) -> None:
    """Has a model that needs it know the token of its tokenizer's padding.

    Raises:
        CheckpointError: if there is none.
    """
    if not _needs_padding(model):
        return
    model.config.pad_token_id = getattr(processor, "pad_token_id", None)
    if model.config.pad_token_id is None:
        raise CheckpointError(
            f"{name} classifies rows by their last token, and names no token for the padding after it. Set "
            "pad_token_id in its config.json."
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
    read = config_of(source)
    history = _check_contents(source, native_class, read, weights)
    model, info = read_model(native_class, source, weights, seed, config=read, dtype="auto")
    missing = sorted(info["missing_keys"])
    _check_attention(model, missing)
    if missing:
        notes.append(f"Not in the checkpoint, so initialized at random (seed {seed}): {', '.join(missing)}.")
    unused, renamed = read_tensors(weights, info["unexpected_keys"])
    if unused:
        some = ", ".join(sorted(unused)[:3])
        notes.append(
            f"Carried over as they are, because the model has no place for them: {len(unused)} weights of the "
            f"checkpoint ({some}{', …' if len(unused) > 3 else ''})."
        )
    if renamed:
        notes.append(
            "Not carried over, because the model has no place for them and transformers reads them under other names: "
            f"{', '.join(sorted(renamed))}."
        )
    for note in notes:
        logger.warning(note)
    trusted = (options or LoadOptions()).trust_remote_code
    processor = processor_of(model, source.folder, trusted)
    _name_padding(model, processor, source.name)
    return Checkpoint(
        model,
        processor,
        source,
        history,
        missing=missing,
        unused=unused,
        notes=tuple(notes),
        trust_remote_code=trusted,
    )


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
        CheckpointError: if transformers cannot read it, or it describes no model.
    """
    with reading(f"The config of {source.name}"):
        raw = read_config(source.folder)
        for name, values in _FLAGS.items():
            if name in raw and raw[name] not in values:
                raise CheckpointError(f"{name} in config.json of {source.name} cannot be {json.dumps(raw[name])[:80]}.")
        if GRAPH_OF in raw:
            config: Any = CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
        else:
            config = AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
        for name, most in _SIZES.items():
            size = getattr(config, name, 1)
            if type(size) is not int or not 0 < size <= most:
                raise CheckpointError(
                    f"{name} in config.json of {source.name} should be a whole number above 0, not {size!r}."
                    if type(size) is not int or size < 1
                    else f"{name} in config.json of {source.name} is {size:,}; {most:,} is the most that collab reads."
                )
    return config


def without_weights(model_class: Any, config: Any, name: str) -> PreTrainedModel:
    """The model that a config describes, without weights.

    Args:
        model_class: a model class or an Auto class.
        config: the config.
        name: the checkpoint's name.

    Raises:
        CheckpointError: if transformers cannot build it, or a weight would have no entries.
    """
    build = model_class if isinstance(model_class, type) and issubclass(model_class, PreTrainedModel) else None
    with reading(f"The config of {name}"), torch.device("meta"), init.no_init_weights():
        model = (build or model_class.from_config)(config)
        model.tie_weights()  # which is skipped with their initialization
    for parameter, value in model.named_parameters():
        if not value.numel():
            raise CheckpointError(
                f"By config.json of {name}, {parameter} would have the shape {tuple(value.shape)}, without entries. "
                "One of the sizes in it is 0."
            )
    return model


def _check_contents(source: Source, model_class: Any, config: Any, files: list[Path]) -> History:
    """Checks everything in a folder that a command may need later, before weights are read or any work is done.

    Returns:
        The history, which is one of these things.

    Raises:
        CheckpointError: if a file is damaged, or config and weights do not belong together.
        WeightsError: if a weight is not stored as plain numbers.
    """
    history = read_history(source.folder)
    read_modules(source.folder)
    kind = getattr(model_class, "config_class", None)
    if kind is not None and not isinstance(config, kind):
        raise CheckpointError(
            f"config.json of {source.name} has model_type {config.model_type!r}, but names a {model_class.__name__}, "
            f"which is of type {kind.model_type!r}."
        )
    check_weights_for(without_weights(model_class, copy.copy(config), source.name), files, source.name)
    return history


def model_class_of(config: dict[str, Any], name: str) -> Any:
    """The model class that a config names; the base model's if it names none."""
    architectures = config.get("architectures") or []
    model_type = config["model_type"]
    family = families().get(native_type(model_type))
    if family is not None and model_type not in families():
        own = {model.__name__: model for model in family.models}
        if architectures and architectures[0] not in own:
            raise CheckpointError(f"{name} is a {architectures[0]}, which is none of: {', '.join(own)}.")
        return own[architectures[0]] if architectures else family.base
    if not architectures:
        return transformers.AutoModel
    model_class = getattr(transformers, architectures[0], None)
    if not isinstance(model_class, type) or not issubclass(model_class, PreTrainedModel):
        raise CheckpointError(f"{name} is a {architectures[0]}, which transformers does not have.")
    return model_class
