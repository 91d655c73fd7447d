"""A model with its tokenizer or processor, where it came from, and what was done to it."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PreTrainedModel

from ..errors import DataError
from ..models.inputs import KINDS, InputKind, input_kind
from ..steps.history import History
from ..steps.step import Step
from .failures import reading
from .read import Source, read_object

logger = logging.getLogger(__name__)

# The first holds its settings.
_TOKENIZER = (
    *("tokenizer_config.json", "tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.spm", "bpe.codes"),
    *("*.tiktoken", "special_tokens_map.json", "added_tokens.json"),
)
# What the tokenizers of LayoutLMv3, MarkupLM and TAPAS need, by the names of their arguments.
_BESIDES_TEXT = {"boxes", "xpaths", "table"}
_PROCESSOR = ("preprocessor_config.json", "processor_config.json")
Kept = TypeVar("Kept", bound=Step)


@dataclass(frozen=True)
class Checkpoint:
    """A model with its tokenizer or processor, where it came from, and what was done to it.

    Attributes:
        model: the model, in evaluation mode and in the dtype of the checkpoint if it was loaded.
        processor: the tokenizer, image processor or feature extractor; None as from `read_processor`.
        source: where it was read from; None for a model in memory.
        history: the report in its folder.
        steps: the steps since it was loaded.
        original: the checkpoint whose outputs this one is to give, where the steps began with one; None if unknown.
        missing: names of weights that the checkpoint lacks, initialized at random.
        unused: checkpoint weights that the model's class does not use (for example a pooler beside a language-modelling
            head), saved with the model again.
        notes: notes for the user.
        trust_remote_code: whether transformers may run a tokenizer's code that comes with the checkpoint.
    """

    model: PreTrainedModel
    processor: Any | None = None
    source: Source | None = None
    history: History = field(default_factory=History)
    steps: tuple[Step, ...] = ()
    original: Checkpoint | None = None
    missing: list[str] = field(default_factory=list)
    unused: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trust_remote_code: bool = False

    @property
    def name(self) -> str:
        """The name that the user gave, or that of the model."""
        return self.source.name if self.source is not None else self.model.name_or_path or type(self.model).__name__

    @property
    def folder(self) -> Path | None:
        """The folder that it was read from; None for a model in memory."""
        return None if self.source is None else self.source.folder

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; DataError if there is none."""
        if self.processor is None:
            raise DataError(f"{self.name} has no tokenizer that loads. Add the tokenizer's files to the folder.")
        return self.processor

    @classmethod
    def of(cls, model: Checkpoint | PreTrainedModel) -> Checkpoint:
        """A checkpoint as it is; of a model alone, one without tokenizer and folder."""
        return model if isinstance(model, Checkpoint) else cls(model)

    def then(self, step: Step, **changes: Any) -> Checkpoint:
        """The checkpoint after one more step.

        Args:
            step: the step.
            changes: attributes that the step changed, such as `model`.
        """
        return replace(self, steps=(*self.steps, step), **changes)

    def step(self, kind: type[Kept]) -> Kept | None:
        """The last of its `steps` of a type; None if there is none."""
        return next((step for step in reversed(self.steps) if isinstance(step, kind)), None)

    @property
    def report(self) -> Any:
        """The last of its `steps`: what the verb that returned this checkpoint reports."""
        return self.steps[-1]

    def require_head(self, kind: str) -> None:
        """Raises a DataError if the head for a kind of task is missing from the checkpoint."""
        head = [name for name in self.missing if not name.startswith(f"{self.model.base_model_prefix}.")]
        if head:
            raise DataError(
                f"{self.name} has no head for {kind}: {', '.join(head[:3])} would be random. Fine-tune it first."
            )


def read_processor(folder: Path, kind: InputKind, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer, image processor or feature extractor in a model's folder.

    Args:
        folder: the folder.
        kind: what it makes inputs of.
        trust_remote_code: whether transformers may run the tokenizer's code that comes with the model.

    Returns:
        None if there is none, it needs code that may not be run, or a package that is not installed, or more than text
        (tables, places on a page); and for videos, which are not read.

    Raises:
        CheckpointError: if its files are damaged.
    """
    if kind == "videos":
        return None
    loaders = {"text": AutoTokenizer, "images": AutoImageProcessor, "audio": AutoFeatureExtractor}
    loader: Any = loaders[kind]
    name = {"text": "tokenizer", "images": "image processor", "audio": "feature extractor"}[kind]
    files = _TOKENIZER if kind == "text" else _PROCESSOR
    if not any(path.is_file() for pattern in files for path in folder.glob(pattern)):
        return None
    settings = folder / files[0]
    code = (read_object(settings) if settings.is_file() else {}).get("auto_map")
    if isinstance(code, dict) and loader.__name__ in code and not trust_remote_code:
        logger.warning("The %s comes with code of its own, which was not run; --trust-remote-code runs it.", name)
        return None
    with reading(f"The {name} in {folder}"):
        try:
            processor = loader.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
            if kind == "text" and (besides := _BESIDES_TEXT & inspect.signature(processor).parameters.keys()):
                logger.warning("The tokenizer needs %s, so it was not used on text.", " and ".join(besides))
                return None
            if kind == "text":
                processor("a ☃")  # some damage shows only then
            return processor
        except ImportError as error:
            logger.warning("The %s needs a package that is not installed: %s", name, error)
            return None


def processor_of(model: PreTrainedModel, folder: Path, trust_remote_code: bool = False) -> Any | None:
    """The processor in a model's folder, as from `read_processor`; None for a model of inputs of other kinds."""
    if model.main_input_name not in KINDS:
        return None
    return read_processor(folder, input_kind(model), trust_remote_code)
