"""Saving a model as a folder that transformers can load."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import PreTrainedModel

from .. import modeling
from ..errors import VerificationError
from ..modeling.collab_model import auto_classes
from ..models.layers import count_bytes
from .card import CARD_FILE, write_card
from .history import REPORT_FILE, Step, append, append_to_card, forget_results, read_report
from .load import Checkpoint, read_processor
from .options import SaveOptions
from .read import Source, read_modules, read_object
from .report import Conversion, ConversionReport
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
    "*.model",
    "bpe.codes",
    "dict.txt",
    "chat_template.*",
    # image processors
    "preprocessor_config.json",
    "processor_config.json",
    # sentence-transformers
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    # the rest
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
)


def save(
    conversion: Conversion,
    output: str | Path,
    checkpoint: Checkpoint | None = None,
    options: SaveOptions | None = None,
    steps: Sequence[Step] = (),
    card: str = "converted",
) -> ConversionReport:
    """Saves a converted model with all that is needed to load it; it is moved into place only if it reloads.

    Args:
        conversion: result of `collab.convert`.
        output: folder to write.
        checkpoint: the original, whose tokenizer, image processor, sentence-transformers files, license and unused
            weights are copied. Without it the folder holds the model, its code, the card and the report.
        options: save options.
        steps: steps since the conversion, such as healing, for report and card.
        card: name of the card's template.

    Returns:
        The report as written, with the result of the check.

    Raises:
        OutputError: if the folder cannot be written; nothing is left behind.
        VerificationError: if the folder does not reload to the model in memory; nothing is left behind.
    """
    options = options or SaveOptions()
    output = Path(output).expanduser()
    model = conversion.model
    source = checkpoint.source if checkpoint is not None else None
    with _verified(model, output, checkpoint, options) as (folder, verification):
        before = {} if source is None else read_report(source.folder)
        report = replace(
            conversion.report,
            command=options.command or conversion.report.command,
            verification=verification,
            history=tuple(step.record for step in steps),
            original_history=(*before.get("original_history", ()), *before.get("history", ())),
        )
        (folder / REPORT_FILE).write_text(report.to_json(), encoding="utf-8")
        write_card(
            folder,
            report,
            base_model=options.base_model or _base_model(source, model),
            source=source.folder if source else None,
            auto_class=auto_class_of(sys.modules[type(model).__module__], type(model)),
            template=card,
        )
        for step in steps:
            append_to_card(folder, step, name=output.name)
    logger.info("Wrote %s.", output)
    return report


def save_changed(
    model: PreTrainedModel,
    output: str | Path,
    checkpoint: Checkpoint,
    steps: Sequence[Step],
    options: SaveOptions | None = None,
    card: str | None = None,
) -> None:
    """Saves a model that was trained, pruned or expanded, with the other files of its folder, as `save` does.

    Args:
        model: the model, native or converted.
        output: folder to write.
        checkpoint: what it was loaded from; the steps are appended to copies of its report and card.
        steps: what was done.
        options: save options.
        card: a card to start from instead of the checkpoint's.

    Raises:
        OutputError: as `save`.
        VerificationError: as `save`.
    """
    options = options or SaveOptions()
    output = Path(output).expanduser()
    source = checkpoint.source.folder
    with _verified(model, output, checkpoint, options) as (folder, _):
        for name in (REPORT_FILE, CARD_FILE):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if card is not None:
            (folder / CARD_FILE).write_text(card, encoding="utf-8")
        forget_results(folder)
        for step in steps:
            append(folder, step, name=output.name)
    logger.info("Wrote %s.", output)


@contextlib.contextmanager
def _verified(
    model: PreTrainedModel, output: Path, checkpoint: Checkpoint | None, options: SaveOptions
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields a staged folder with the model and the copied files, and the result of `verify`."""
    check_output(output, checkpoint.source.folder if checkpoint else None, options.overwrite)
    state = {**model.state_dict(), **(checkpoint.unused if checkpoint else {})}
    check_space(output, count_bytes(state.values()))
    with staged(output, options.overwrite) as folder:
        model.save_pretrained(folder, state_dict=state, max_shard_size=options.max_shard_size)
        if checkpoint is not None:
            carry_over(checkpoint.source.folder, folder, checkpoint.trust_remote_code, checkpoint.new_tokenizer)
        yield folder, verify(folder, model)


def carry_over(source: Path, folder: Path, trust_remote_code: bool = False, new_tokenizer: Any | None = None) -> None:
    """Copies tokenizer, image processor and other files of a model, and checks that they still load.

    Args:
        source: folder of the original.
        folder: folder of the converted model, with its config.
        trust_remote_code: whether transformers may run a tokenizer's code that comes with the original; it is copied.
        new_tokenizer: a tokenizer to write instead of the original's; None for none.

    Raises:
        VerificationError: if the tokenizer loads differently.
    """
    carried = _CARRIED if new_tokenizer is None else _CARRIED[_CARRIED.index("preprocessor_config.json") :]
    patterns = (*carried, "*.py") if trust_remote_code else carried
    own = {path.name for path in Path(modeling.__path__[0]).glob("collab_*.py")}  # written with models that run on it
    for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
        # generation_config.json is written with models that generate
        if path.name not in own and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    _copy_sentence_transformers_modules(source, folder)
    if new_tokenizer is None:
        _pin_tokenizer(source, folder, trust_remote_code)
    else:
        new_tokenizer.save_pretrained(folder)
    _pin_image_processor(source, folder)


def _copy_sentence_transformers_modules(source: Path, folder: Path) -> None:
    """Copies the folders that modules.json names: pooling, normalization, dense layers."""
    for module in read_modules(source):
        path = (source / module).resolve()
        if path != source.resolve() and path.is_dir():
            shutil.copytree(path, folder / module, dirs_exist_ok=True)


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


def _pin_image_processor(source: Path, folder: Path) -> None:
    """Writes the image processor's class into its config if that left it to the model type."""
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return
    settings = read_object(path)
    if "image_processor_type" in settings or "feature_extractor_type" in settings:
        return
    processor = read_processor(source, "images")
    if processor is None:
        return
    settings["image_processor_type"] = type(processor).__name__
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _base_model(source: Source | None, model: PreTrainedModel) -> str:
    if source is not None:
        return source.hub_id or source.folder.name
    name = model.name_or_path or model.config.model_type
    return Path(name).name if Path(name).is_dir() else name


def auto_class_of(module: ModuleType, model_class: type) -> str:
    """The Auto class that loads a collaborative class of a family's file; the most specific if there are several."""
    names = [name for name, models in auto_classes(module).items() if model_class in models]
    vague = ("AutoModelForTextEncoding", "AutoModelForPreTraining")
    return next((name for name in names if name not in vague), names[-1] if names else "AutoModel")
