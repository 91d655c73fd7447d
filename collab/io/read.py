"""Reading a checkpoint from a folder or the Hub, completely or not at all, without running its code."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import CheckpointError, first_line

logger = logging.getLogger(__name__)

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
# What transformers looks for, in its order.
WEIGHT_FILES = (_SAFETENSORS, f"{_SAFETENSORS}.index.json", _PICKLE, f"{_PICKLE}.index.json")
_FOREIGN_WEIGHTS = (
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.onnx",
    "*.gguf",
    "*.tflite",
    "*.mlpackage/*",
    "onnx/*",
    "openvino/*",
)


@dataclass(frozen=True)
class Source:
    """Where a model is.

    Attributes:
        name: the folder or Hub id as the user gave it.
        folder: local folder with its files.
        hub_id: id on the Hub; None for a local folder.
        revision: commit on the Hub; None for a local folder.
    """

    name: str
    folder: Path
    hub_id: str | None = None
    revision: str | None = None


def resolve_source(model: str, revision: str | None = None) -> Source:
    """Resolves a folder or a Hub id to a local folder, downloading it if needed.

    Args:
        model: the folder's path or the Hub id.
        revision: branch, tag or commit on the Hub.

    Raises:
        CheckpointError: if there is no such folder, and the model was not found on the Hub or in the local cache.
    """
    folder = Path(model).expanduser()
    try:
        if model and folder.is_dir():
            if revision is not None:
                raise CheckpointError(f"{model} is a local folder; a revision applies only to a model on the Hub.")
            return Source(model, folder.resolve())
        if folder.is_file():
            raise CheckpointError(f"{model} is a file. Give the folder that holds config.json and the weights.")
        validate_repo_id(model)
    except CheckpointError:
        raise
    except (HFValidationError, OSError) as error:
        raise CheckpointError(f"There is no folder {model}, and it is not a valid Hub id either.") from error
    try:
        return _download(model, revision)
    except (OSError, ValueError, HfHubHTTPError) as error:
        at = f" at revision {revision}" if revision else ""
        raise CheckpointError(
            f"{model!r} is not a local folder, and was not found{at} on the Hugging Face Hub or in the local cache: "
            f"{first_line(error)}"
        ) from error


def _download(model: str, revision: str | None) -> Source:
    """Downloads a model's files; pickled weights only if there are no others."""
    pickles = f"{_PICKLE.removesuffix('.bin')}*"
    folder = Path(snapshot_download(model, revision=revision, ignore_patterns=[*_FOREIGN_WEIGHTS, pickles]))
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        folder = Path(snapshot_download(model, revision=revision, ignore_patterns=list(_FOREIGN_WEIGHTS)))
    return Source(model, folder, hub_id=model, revision=folder.name)


def read_model(
    model_class: Any, source: Source, seed: int, reshape: bool = False, **arguments: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Loads a model by `from_pretrained`.

    Args:
        model_class: a model class or an Auto class.
        source: where it is.
        seed: random seed for weights that the checkpoint lacks.
        reshape: whether to initialize weights anew whose shape differs from the config's, instead of raising.
        arguments: further arguments of `from_pretrained`.

    Returns:
        The model and the loading info of `from_pretrained`.

    Raises:
        CheckpointError: if it cannot be loaded, or a weight does not have the shape that the config gives it.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, info = model_class.from_pretrained(
                source.folder,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # to name what differs, below
                output_loading_info=True,
                **arguments,
            )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{_PICKLE} is a pickle of more than plain weights, and unpickling it could run any code. Save it as "
            "safetensors where you trust it: model.save_pretrained(folder)."
        ) from error
    except (
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        raise CheckpointError(f"{source.name} could not be loaded: {first_line(error)}") from error
    for name, actual, expected in [] if reshape else sorted(info["mismatched_keys"]):
        raise CheckpointError(
            f"{name} has shape {tuple(actual)} in the weights, but {tuple(expected)} by config.json. They do not "
            "belong together."
        )
    return model, info


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a model's folder.

    Raises:
        CheckpointError: if there is none, or it does not name a `model_type`.
    """
    path = folder / "config.json"
    if not path.is_file():
        modules = read_json(folder / "modules.json") if (folder / "modules.json").is_file() else []
        inside = next(
            (module["path"] for module in modules if (folder / module.get("path", "") / "config.json").is_file()),
            None,
        )
        hint = f" The transformer of this sentence-transformers model is in {folder / inside}." if inside else ""
        raise CheckpointError(f"{folder} has no config.json, so it is not a transformers model.{hint}")
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} does not name a model_type, so collab cannot tell what the model is.")
    return config


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        CheckpointError: if it is not valid JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error


def check_weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, each checked to be present and complete.

    Raises:
        CheckpointError: if a file is missing or truncated; the message names it.
    """
    weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None:
        others = sorted(path.name for pattern in _FOREIGN_WEIGHTS for path in folder.glob(pattern))
        only = f" It has {', '.join(others)}, which transformers 5 does not read." if others else ""
        raise CheckpointError(f"{folder} has no weights: neither {_SAFETENSORS} nor {_PICKLE}.{only}")
    files = [weights]
    if weights.suffix == ".json":
        index = read_json(weights)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise CheckpointError(f"{weights} has no weight_map.")
        files = [folder / name for name in sorted(set(index["weight_map"].values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; {weights.name} lists it.")
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} is damaged or truncated ({error}). Download it again.") from error
    return files


def read_tensors(files: list[Path], names: set[str]) -> dict[str, Tensor]:
    """The floating-point tensors of these names; names that the files lack are skipped."""
    selected: dict[str, Tensor] = {}
    if not names:
        return selected
    for file in files:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                selected |= {name: tensors.get_tensor(name) for name in names & set(tensors.keys())}
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
            selected |= {name: tensors[name].clone() for name in names & set(tensors)}
    return {name: tensor for name, tensor in selected.items() if tensor.is_floating_point()}
