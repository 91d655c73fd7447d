"""Reading a checkpoint from a folder or the Hub, completely or not at all, without running its code."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import httpx, validate_repo_id
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ..data.source import is_path
from ..errors import CheckpointError, WeightsError, first_line
from .failures import reading

logger = logging.getLogger(__name__)

GRAPH_OF = "collab_graph_of"
"""Entry of a graph's config.json, which is of the native class: type and class of the converted model."""

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
# What transformers looks for, in its order.
WEIGHT_FILES = (_SAFETENSORS, f"{_SAFETENSORS}.index.json", _PICKLE, f"{_PICKLE}.index.json")
_MODULES = "modules.json"
_FILES = (".json", ".txt", ".safetensors", ".bin", ".model")
_FLOATS = ("F64", "F32", "F16", "BF16", "torch.float64", "torch.float32", "torch.float16", "torch.bfloat16")
# What is read of a config before transformers checks it.
_CONFIG_TYPES = {
    GRAPH_OF: dict,
    "architectures": list,
    "id2label": dict,
    "label2id": dict,
    "auto_map": dict,
    "quantization_config": dict,
    "position_embedding_type": str,
}
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

    @property
    def place(self) -> Path:
        """The whole path that the user gave, of a local folder."""
        return Path(self.name).expanduser().resolve()


def resolve_source(model: str, revision: str | None = None) -> Source:
    """Resolves a folder or a Hub id to a local folder, downloading it if needed.

    Args:
        model: the folder's path or the Hub id.
        revision: branch, tag or commit on the Hub.

    Raises:
        CheckpointError: if there is no such folder, a file in it is a link to elsewhere, or the model was not found on
            the Hub or in the local cache.
    """
    try:
        model.encode()
        folder = Path(model).expanduser()
        if model and folder.is_dir():
            if revision is not None:
                raise CheckpointError(f"{model} is a local folder; a revision applies only to a model on the Hub.")
            _check_links(folder.resolve(), folder.resolve())
            return Source(model, folder.resolve())
        if folder.is_file():
            raise CheckpointError(f"{model} is a file. Give the folder that holds config.json and the weights.")
        validate_repo_id(model)
    except CheckpointError:
        raise
    except (HFValidationError, OSError, ValueError, RuntimeError) as error:
        hint = "" if is_path(model) else " A model on the Hub is called user/name or name."
        raise CheckpointError(f"There is no folder {_shown(model)}.{hint}") from error
    try:
        return _download(model, revision)
    except (OSError, ValueError, HfHubHTTPError) as error:  # also where the Hub cannot be reached
        at = f" at revision {revision}" if revision else ""
        raise CheckpointError(
            f"{model!r} is not a local folder, and was not found{at} on the Hugging Face Hub or in the local cache: "
            f"{first_line(error)}"
        ) from error
    except httpx.HTTPError as error:  # once it is under way
        raise CheckpointError(
            f"The download of {model} failed: {first_line(error).rstrip('.')}. The same command goes on with it."
        ) from error


def _shown(name: str) -> str:
    """A name for a message, without what cannot be printed."""
    return repr(name[:200]) if len(name) > 200 or not name.strip() or not name.isprintable() else name


def _check_links(top: Path, folder: Path, deep: bool = False) -> None:
    """Checks that no file of a folder is a link to elsewhere, whose content would be read and copied into outputs.

    Links into the cache of the Hub are as the Hub's own library makes them.

    Args:
        top: folder of the model, resolved.
        folder: it, or a folder below it.
        deep: whether to look into folders below `folder` as well.

    Raises:
        CheckpointError: if one is, or is a link to nothing, a pipe or a device; the message names it.
    """
    with reading(str(folder)):
        for path in folder.rglob("*") if deep else folder.iterdir():
            if path.is_symlink() and (deep or not path.is_dir()):
                target = path.resolve()
                if not target.is_relative_to(top) and not target.is_relative_to(Path(HF_HUB_CACHE).resolve()):
                    raise CheckpointError(
                        f"{path} is a link to {target}, outside the model's folder. If you trust it, put the file "
                        "itself there."
                    )
                if not path.exists():
                    raise CheckpointError(f"{path} is a link to {target}, which is not there.")
            elif path.is_dir() and path.suffix in _FILES:
                raise CheckpointError(f"{path} is a folder, not a file.")
            elif not path.is_file() and not path.is_dir():
                raise CheckpointError(f"{path} is a pipe or a device, not a file.")


def _download(model: str, revision: str | None) -> Source:
    """Downloads a model's files; pickled weights only if there are no others."""
    pickles = f"{_PICKLE.removesuffix('.bin')}*"
    folder = Path(snapshot_download(model, revision=revision, ignore_patterns=[*_FOREIGN_WEIGHTS, pickles]))
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        folder = Path(snapshot_download(model, revision=revision, ignore_patterns=list(_FOREIGN_WEIGHTS)))
    return Source(model, folder, hub_id=model, revision=folder.name)


def read_model(
    model_class: Any, source: Source, files: list[Path], seed: int, reshape: bool = False, **arguments: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Loads a model by `from_pretrained`.

    Args:
        model_class: a model class or an Auto class.
        source: where it is.
        files: its weights, as from `check_weight_files`.
        seed: random seed for weights that the checkpoint lacks.
        reshape: whether to initialize weights anew whose shape differs from the config's, instead of raising.
        arguments: further arguments of `from_pretrained`.

    Returns:
        The model and the loading info of `from_pretrained`.

    Raises:
        CheckpointError: if it cannot be loaded, or a weight does not have the shape that the config gives it.
        OutOfMemoryError: if it does not fit into memory.
    """
    weights = f"{source.name} ({', '.join(file.name for file in files[:2])}{', …' if len(files) > 2 else ''})"
    with reading(weights), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, info = model_class.from_pretrained(
            source.folder,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # to name what differs, below
            output_loading_info=True,
            **arguments,
        )
    if not model.state_dict().keys() - info["missing_keys"]:
        raise CheckpointError(f"None of the weights in {weights} is one of a {type(model).__name__}.")
    for name, actual, expected in [] if reshape else sorted(info["mismatched_keys"]):
        raise CheckpointError(
            f"{name} has shape {tuple(actual)} in the weights, but {tuple(expected)} by config.json. They do not "
            "belong together."
        )
    return model, info


def check_weights_for(model: PreTrainedModel, files: list[Path], name: str) -> None:
    """Checks, before weights are read, that they can be those of a model.

    Args:
        model: the model that the config describes, without weights.
        files: the weights.
        name: the checkpoint's name.

    Raises:
        CheckpointError: if the files are far too small for it, so that its weights would be random.
        WeightsError: if a weight is stored as integers or in less than 16 bits; the message names it.
    """
    expected, prefix = dict(model.named_parameters()), f"{model.base_model_prefix}."
    for weight, dtype in _dtypes(files).items():
        if dtype not in _FLOATS and not expected.keys().isdisjoint(
            (weight, prefix + weight, weight.removeprefix(prefix))
        ):
            raise WeightsError(
                f"{weight} is stored as {dtype.removeprefix('torch.')}. collab reads plain weights of 16 bits or more: "
                "load the original without quantization and save it again."
            )
    count = sum(parameter.numel() for parameter in model.parameters())
    size = sum(file.stat().st_size for file in files)
    if count > size:
        raise CheckpointError(
            f"config.json of {name} describes a model of {count:,} parameters, which cannot be in {size:,} bytes of "
            "weights. They do not belong together."
        )


def _dtypes(files: list[Path]) -> dict[str, str]:
    """The dtype of every tensor by name."""
    dtypes: dict[str, str] = {}
    for file in files:
        with reading(str(file)):
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    dtypes |= {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            else:
                content = torch.load(file, map_location="meta", weights_only=True)
                dtypes |= {name: str(tensor.dtype) for name, tensor in content.items()}
    return dtypes


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a model's folder; of a graph, that of the model that it was written of.

    Raises:
        CheckpointError: if there is none, or it does not name a `model_type`.
    """
    path = folder / "config.json"
    if not path.is_file():
        inside = next((module for module in read_modules(folder) if (folder / module / "config.json").is_file()), None)
        hint = f" The transformer of this sentence-transformers model is in {folder / inside}." if inside else ""
        raise CheckpointError(f"{folder} has no config.json, so it is not a transformers model.{hint}")
    config = read_object(path)
    if isinstance(config.get(GRAPH_OF), dict):
        config |= config[GRAPH_OF]
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} does not name a model_type, so collab cannot tell what the model is.")
    for key, expected in _CONFIG_TYPES.items():
        if not isinstance(config.get(key), expected | None):
            raise CheckpointError(f"{key} in {path} should be {_JSON[expected]}, not {json.dumps(config[key])[:80]}.")
    if not all(isinstance(name, str) for name in config.get("architectures") or []):
        raise CheckpointError(f"architectures in {path} should be names of classes.")
    return config


def read_modules(folder: Path) -> list[str]:
    """The folders, within a model's, that its modules.json names (sentence-transformers); empty if it has none.

    Raises:
        CheckpointError: if it is not of that form, or names a folder outside or one with links to outside.
    """
    path = folder / _MODULES
    if not path.is_file():
        return []
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(entry, dict) for entry in modules):
        raise CheckpointError(f"{path} is not a list of modules.")
    names = [entry.get("path", "") for entry in modules]
    for name in names:
        with reading(str(path)):
            inside = isinstance(name, str) and (folder / name).resolve().is_relative_to(folder.resolve())
            exists = inside and (folder / name).is_dir()
        if not inside:
            raise CheckpointError(f"{path} names {json.dumps(name)[:80]}, which is not a folder inside the model's.")
        if name and exists and (folder / name).resolve() != folder.resolve():
            _check_links(folder.resolve(), (folder / name).resolve(), deep=True)
    return names


_JSON = {dict: "an object, {…}", list: "a list, […]", str: "a text"}


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object.

    Raises:
        CheckpointError: if it is not valid JSON, or of another type.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} should hold {_JSON[dict]}, not {json.dumps(content)[:80]}.")
    return content


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        CheckpointError: if it cannot be read or is not valid JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} could not be read: {first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {first_line(error)}") from error


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
        files = [folder / name for name in _shards(weights)]
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


def _shards(index: Path) -> list[str]:
    """The files that an index of weights names.

    Raises:
        CheckpointError: if it names none, or what is not a file of weights in its folder.
    """
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} has no weight_map, which says what file each weight is in.")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix not in (".safetensors", ".bin"):
            raise CheckpointError(
                f"{index} names {json.dumps(name)[:80]}, which is not a file of weights in the same folder."
            )
    return sorted(set(names.values()))


def tensor_names(file: Path) -> list[str]:
    """The names of the tensors in a safetensors file."""
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


def read_tensors(files: list[Path], names: set[str]) -> tuple[dict[str, Tensor], set[str]]:
    """The floating-point tensors of these names, and the names that the files lack."""
    selected: dict[str, Tensor] = {}
    if not names:
        return selected, set()
    for file in files:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                selected |= {name: tensors.get_tensor(name) for name in names & set(tensors.keys())}
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
            selected |= {name: tensors[name].clone() for name in names & set(tensors)}
    floating = {name: tensor for name, tensor in selected.items() if tensor.is_floating_point()}
    return floating, names - selected.keys()
