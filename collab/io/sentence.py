"""The files of sentence-transformers in a model's folder: which they are, and how they are copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from ..modeling.collab_model import CollaborativeMixin
from ..models.inputs import has_decoder
from .read import read_json, read_modules, read_object

_MODULES = "modules.json"
SENTENCE_FILES = (_MODULES, "sentence_*_config.json", "config_sentence_transformers.json")
"""Files of sentence-transformers, besides the folders that modules.json names."""

_NATIVE = "sentence_transformers.models.Transformer"
_OWN = "collab_sentence.Transformer"
OWN_FILE = "collab_sentence.py"
"""The code of the first module of such a model."""

_OWN_CODE = '''"""The first module of a sentence-transformers model whose transformer is collaborative, of T5's kind."""

from sentence_transformers.sentence_transformer.modules import Transformer as _Transformer


class Transformer(_Transformer):
    """Loads the class that config.json names; of T5's kind, sentence-transformers would load the native one."""

    def _load_encoder_only_model(self, *args, **kwargs):
        return None
'''


def sentence_settings(folder: Path) -> Path | None:
    """The settings of a folder's sentence-transformers model; older versions name the file by the model's type."""
    usual = folder / "sentence_bert_config.json"
    return next((path for path in (usual, *sorted(folder.glob("sentence_*_config.json"))) if path.is_file()), None)


def needs_own_transformer(model: PreTrainedModel) -> bool:
    """Whether sentence-transformers would load a model by a native class, with weights at random.

    It does so with the encoders of families of encoder–decoders, which it knows by their configs.
    """
    return isinstance(model, CollaborativeMixin) and (bool(model.base_class.encoders) or has_decoder(model))


def has_own_transformer(folder: Path) -> bool:
    """Whether the first module in a folder is of code there, which only runs with the user's consent."""
    return _first_kind(read_json(folder / _MODULES)) == _OWN


def _first_kind(entries: list[dict[str, Any]]) -> str:
    """The class of the first module."""
    return str(entries[0].get("type") or "") if entries else ""


def copy_modules(source: Path, folder: Path, model: PreTrainedModel) -> None:
    """Copies the folders that modules.json names, such as pooling, and has its first module load the model.

    Args:
        source: folder of the model that this one was made from.
        folder: folder of the new model, with its config and modules.json.
        model: the new model.
    """
    for module in read_modules(source):
        path = (source / module).resolve()
        if path != source.resolve() and path.is_dir():
            _copy_files(path, folder / module)
    file = folder / _MODULES
    entries = read_json(file) if file.is_file() else []
    kind = _first_kind(entries)
    # Not a graph, whose config is native.
    own = needs_own_transformer(model) and "auto_map" in read_object(folder / CONFIG_NAME)
    wanted = _OWN if own and kind.endswith(".Transformer") else kind
    wanted = _NATIVE if kind == _OWN and not own else wanted
    if wanted == _OWN:
        (folder / OWN_FILE).write_text(_OWN_CODE, encoding="utf-8")
    if wanted != kind:
        entries[0]["type"] = wanted
        file.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def _copy_files(source: Path, folder: Path) -> None:
    """Copies the files of a folder and of those in it, without their permissions."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir():
            _copy_files(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)
