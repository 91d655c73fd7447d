"""Saving a model as a folder that transformers can load."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from .. import modeling
from ..errors import VerificationError
from ..modeling.collab_model import CollaborativeMixin, auto_classes
from ..models.inputs import InputKind, input_kind
from ..models.layers import count_bytes
from ..steps.conversion import VocabularyCut
from ..steps.export import Expansion
from ..steps.history import History
from ..steps.long_rows import Lengthening
from ..steps.step import Founding
from .card import (
    ATTENTION_TAGS,
    CARD_FILE,
    render_card,
    settings_of,
    source_metadata,
    with_loading,
    with_metadata,
    with_sections,
)
from .checkpoint import Checkpoint, read_processor
from .head import fitting, has_new_head, head_of, is_embedder
from .history import write_history
from .options import HUB_ID, SaveOptions
from .read import read_object
from .sentence import OWN_FILE, SENTENCE_FILES, copy_modules, sentence_settings
from .staging import check_output, check_space, staged
from .verify import verify

logger = logging.getLogger(__name__)

# Files that are copied unchanged. Weights and config are written anew, everything else is not copied.
_CARRIED = (
    # tokenizers
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "vocab-*.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "bpe.codes",
    "dict.txt",
    "normalizer.json",
    "word_shape.json",
    "word_pronunciation.json",
    "chat_template.*",
    # image processors
    "preprocessor_config.json",
    "processor_config.json",
    # the rest
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
)


def save(checkpoint: Checkpoint, output: str | Path, options: SaveOptions | None = None) -> History:
    """Saves a model with all that is needed to load it; it is moved into place only if it reloads.

    Report and card are those of the folder that the checkpoint was loaded from, with its steps since. The tokenizer or
    processor, sentence-transformers files, license and unused weights of that folder go along.

    Args:
        checkpoint: the model, with the steps that made it.
        output: folder to write.
        options: save options.

    Returns:
        The history as written, with the result of the check.

    Raises:
        OutputError: if the folder cannot be written; nothing is left behind.
        VerificationError: if the folder does not reload to the model in memory; nothing is left behind.
    """
    options = options or SaveOptions()
    output = Path(output).expanduser()
    check_output(output, checkpoint.folder, options.overwrite)
    model, source = checkpoint.model, checkpoint.source
    state = {**model.state_dict(), **checkpoint.unused}
    check_space(output, count_bytes(state.values()))
    with staged(output, options.overwrite) as folder:
        model.save_pretrained(folder, state_dict=state, max_shard_size=options.max_shard_size)
        carry_over(checkpoint, folder)
        history = checkpoint.history.then(
            checkpoint.steps,
            source=None if source is None else source.hub_id or str(source.place),
            revision=None if source is None else source.revision,
            command=options.command,
            notes=checkpoint.notes,
            verification=verify(folder, model),
        )
        write_history(folder, history)
        (folder / CARD_FILE).write_text(_card(checkpoint, folder, output.name, options, history), encoding="utf-8")
    logger.info("Wrote %s.", output)
    return history


def _card(checkpoint: Checkpoint, folder: Path, name: str, options: SaveOptions, history: History) -> str:
    """The card: that of the source with the new sections, or a new one where the model is of another kind now."""
    model, source, steps = checkpoint.model, checkpoint.folder, checkpoint.steps
    before = fitting(source_metadata(source), model, source)
    before.pop("base_model", None)
    base_model = base_model_of(checkpoint, options)
    based = {} if base_model is None else {"base_model": base_model}
    sentence_transformers = (folder / "modules.json").is_file()
    library = "sentence-transformers" if sentence_transformers else "transformers"
    founding = next((step for step in steps if isinstance(step, Founding)), None)
    if founding is not None:
        folder_of = None if checkpoint.source is None or checkpoint.source.hub_id else checkpoint.source.place
        name_of = base_model or (folder_of or Path(checkpoint.name)).name
        card = render_card(
            "converted",
            before,
            {
                **based,
                "library_name": library,
                "tags": list(dict.fromkeys([*before.get("tags", []), "collab", *founding.tags])),
            },
            title=name_of.rpartition("/")[2],
            adjective=next(filter(None, (step.adjective for step in steps)), "in the layout of collab"),
            step=founding.title.lower(),
            introduction=founding.introduction(_linked(name_of, base_model is not None)),
            auto_class=auto_class_of(model),
            sentence_transformers=sentence_transformers,
            tokenizer=(folder / "tokenizer_config.json").is_file(),
            command=options.command,
            settings=settings_of(founding.settings),
            versions=founding.versions,
            notes=[note for note in history.report["notes"] if note not in founding.notes],
        )
    elif checkpoint.step(Expansion) is not None and checkpoint.original is not None:
        native_class, auto_class = type(model).__name__, auto_class_of(checkpoint.original.model)
        given = {"native_class": native_class, "auto_class": auto_class, "library": library}
        card = expanded_card(checkpoint.history, before | based, name, **given)
    else:
        file = None if source is None else source / CARD_FILE
        there = file is not None and file.is_file()
        card = file.read_text(encoding="utf-8", errors="replace") if there else ""  # type: ignore[union-attr]
        card = with_metadata(card, {**before, **based})
        head = head_of(model)
        if head is not None and has_new_head(model, source):
            card = with_loading(card, name, head.auto_class, own_code=isinstance(model, CollaborativeMixin))
    return with_sections(card, steps, name, changed=True)


def expanded_card(
    history: History, before: Mapping[str, Any], name: str, *, native_class: str, auto_class: str, library: str
) -> str:
    """The card of an expanded model, without its section.

    Args:
        history: history of the converted model.
        before: header of its card.
        name: name of the expanded model.
        native_class: its class.
        auto_class: the Auto class that loads it with its head.
        library: the library that loads it.
    """
    commands = [history.command, *(entry.get("command") for entry in history.entries)]
    base = before.get("base_model") or (Path(history.source).name if history.source else None)
    return render_card(
        "expanded",
        before,
        {
            "library_name": library,
            "tags": [tag for tag in dict.fromkeys([*before.get("tags", []), "collab"]) if tag not in ATTENTION_TAGS],
            **{key: before[key] for key in ("base_model",) if key in before},
        },
        title=name,
        native_class=native_class,
        original=f"`{base}`" if base else "a model",
        auto_class=auto_class,
        sentence_transformers=library == "sentence-transformers",
        settings=settings_of(history.settings),
        done=history.done,
        compressed="compress" in history.kinds,
        commands=list(dict.fromkeys(filter(None, commands))),
    )


def carry_over(checkpoint: Checkpoint, folder: Path) -> None:
    """Copies tokenizer, image processor and other files of a model, and checks that they still load.

    Of a model in memory, tokenizer or image processor are written.

    Args:
        checkpoint: the model, with a tokenizer of its own if tokens were left out.
        folder: folder of the new model, with its config.

    Raises:
        VerificationError: if the tokenizer loads differently.
    """
    source, trusted = checkpoint.folder, checkpoint.trust_remote_code
    if source is None:
        if checkpoint.processor is not None:
            checkpoint.processor.save_pretrained(folder)
        return
    cut = checkpoint.step(VocabularyCut) is not None
    carried = _CARRIED if not cut else _CARRIED[_CARRIED.index("preprocessor_config.json") :]
    patterns = (*carried, "*.py") if trusted else carried
    # Written with models that run on it.
    own = {OWN_FILE, *(path.name for path in Path(modeling.__path__[0]).glob("collab_*.py"))}
    embedder = is_embedder(checkpoint.model, source)
    patterns = (*patterns, *SENTENCE_FILES) if embedder else patterns
    for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
        # generation_config.json is written with models that generate
        if path.name not in own and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    if embedder:
        copy_modules(source, folder, checkpoint.model)
    if cut:
        checkpoint.tokenizer.save_pretrained(folder)
    else:
        _pin_tokenizer(source, folder, trusted)
    _pin_processor(source, folder, checkpoint.model)
    lengthening = checkpoint.step(Lengthening)
    if lengthening is not None and lengthening.max_length is not None and lengthening.extended:
        _allow(folder, lengthening.max_length.after)


def _allow(folder: Path, longest: int) -> None:
    """Has the tokenizer, and sentence-transformers, take rows of so many tokens."""
    tokenizer = folder / "tokenizer_config.json"
    for path, entry in ((tokenizer, "model_max_length"), (sentence_settings(folder), "max_seq_length")):
        if path is not None and path.is_file():
            settings = read_object(path) | {entry: longest}
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _pin_tokenizer(source: Path, folder: Path, trust_remote_code: bool) -> None:
    """Writes the tokenizer's class into its config if that left it to the model type, which has changed."""
    original = read_processor(source, "text", trust_remote_code)
    if original is None:
        return  # none, or one whose code or package is not there: its files are copied unchecked
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    if "tokenizer_class" not in settings:
        settings["tokenizer_class"] = type(original).__name__
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    copied: Any = read_processor(folder, "text", trust_remote_code)
    text = ["Heads collaborate: naïve façade, 東京 42%!", "CC(=O)Oc1ccccc1C(=O)O"]
    if original.get_vocab() != copied.get_vocab() or original(text)["input_ids"] != copied(text)["input_ids"]:
        raise VerificationError("The tokenizer of the exported folder encodes differently from the original's.")


def _pin_processor(source: Path, folder: Path, model: PreTrainedModel) -> None:
    """Writes the class of an image processor or feature extractor into its config if the model type told it."""
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return
    settings = read_object(path)
    if "image_processor_type" in settings or "feature_extractor_type" in settings:
        return
    kind: InputKind = "audio" if input_kind(model) == "audio" else "images"
    processor = read_processor(source, kind)
    if processor is None:
        return
    entry = "feature_extractor_type" if kind == "audio" else "image_processor_type"
    settings[entry] = type(processor).__name__
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def base_model_of(checkpoint: Checkpoint, options: SaveOptions) -> str | None:
    """The Hub id of the model that a checkpoint was made of, for the card; None if none is known.

    It is the one that was given, that of the model which was read, the name of a model in memory that transformers read
    from the Hub, or the one in the card of the folder. The name of a folder is none.
    """
    source, history = checkpoint.source, checkpoint.history
    if options.base_model is not None:
        return options.base_model
    if source is not None and source.hub_id is not None:
        return source.hub_id
    name = checkpoint.name
    if source is None and "/" in name and HUB_ID.fullmatch(name) and not Path(name).exists():
        return name
    carried = source_metadata(checkpoint.folder).get("base_model")
    local = history.source is not None and history.revision is None and carried == Path(history.source).name
    return None if local else carried  # earlier versions wrote names of folders


def _linked(name: str, on_hub: bool) -> str:
    return f"[`{name}`](https://huggingface.co/{name})" if on_hub and "/" in name else f"`{name}`"


def auto_class_of(model: PreTrainedModel) -> str:
    """The Auto class that loads a collaborative model with its head; the most specific if there are several."""
    module = sys.modules[type(model).__module__]
    names = [name for name, models in auto_classes(module).items() if type(model) in models]
    vague = ("AutoModelForTextEncoding", "AutoModelForPreTraining")
    return next((name for name in names if name not in vague), names[-1] if names else "AutoModel")
