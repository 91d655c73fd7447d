"""The model card: where a model came from, what was done, how good it is, how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import model_index_to_eval_results

from ..steps.step import Step

CARD_FILE = "README.md"
ATTENTION_TAGS = ("collaborative-attention", "low-rank")
"""Tags of attention layers that a model of the original's class has no more."""
# Whether an entry of a header is always a list.
_HEADER = {
    **dict.fromkeys(("license", "license_name", "license_link", "language", "datasets", "base_model"), False),
    "pipeline_tag": False,
    "tags": True,
}
INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag", "datasets")


def source_metadata(folder: Path | None) -> Mapping[str, Any]:
    """The YAML header of a source model's README.md; empty if there is none or it cannot be parsed."""
    readme = None if folder is None else folder / CARD_FILE
    if readme is None or not readme.is_file():
        return {}
    return parse_card(readme.read_text(encoding="utf-8", errors="replace"))[0].to_dict()


def parse_card(content: str) -> tuple[ModelCardData, str]:
    """A card's header, without entries that are not of the Hub's types, and its text.

    A card is prose by anybody: one that cannot be parsed is all text.
    """
    if not REGEX_YAML_BLOCK.search(content):
        return ModelCardData(), content
    try:
        card = ModelCard(content, ignore_metadata_errors=True)
        data: Any = card.data
        for name, lists in _HEADER.items():
            value = data.get(name)
            several = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
            if not (several if lists else several or isinstance(value, str)):
                data.__dict__.pop(name, None)
        data.to_yaml()
    except Exception:  # YAML of any shape, which the Hub's library does not expect
        return ModelCardData(), content
    return data, card.text.lstrip("\n")


def render_card(template: str, before: Mapping[str, Any], metadata: Mapping[str, Any], **values: Any) -> str:
    """A model card from a template of this package, without sections for steps.

    Args:
        template: file name in `collab/io/templates`, without its suffix.
        before: header of the card of the model that this one was made from, as from `source_metadata`; its license,
            language and others are inherited.
        metadata: entries of the card's header; see `huggingface_hub.ModelCardData`.
        values: variables of the template.
    """
    path = Path(__file__).parent / "templates" / f"{template}.md"
    inherited = {name: before[name] for name in INHERITED if name in before}
    return str(ModelCard.from_template(ModelCardData(**inherited, **metadata), template_path=str(path), **values))


def with_sections(card: str, steps: Sequence[Step], name: str, *, changed: bool = False) -> str:
    """A card with a section for each of several steps.

    Args:
        card: the card; empty to begin one.
        steps: the steps.
        name: name of the model, for the model-index and a new card.
        changed: whether the weights have changed, so that the metrics in the model-index are no longer theirs.
    """
    data: Any
    data, text = parse_card(card) if card else (ModelCardData(), f"# {name}\n")
    if changed:
        data.eval_results = None
    measured = [
        EvalResult(
            task_type=metric.task,
            dataset_type=metric.dataset,
            dataset_name=metric.dataset,
            metric_type=metric.metric,
            metric_value=round(metric.value, 6),
        )
        for step in steps
        for metric in step.model_index()
    ]
    if measured:
        data.eval_results = _latest([*(data.eval_results or []), *measured])
        data.model_name = data.model_name or name
    header = f"---\n{data.to_yaml()}\n---\n\n" if data.to_dict() else ""
    sections = "".join(f"\n\n## {step.title}\n\n{step.section()}" for step in steps)
    return f"{header}{text.rstrip()}{sections}\n"


def with_metadata(card: str, metadata: Mapping[str, Any]) -> str:
    """A card with other values of the entries of its header that models inherit, of tags and of the library.

    Args:
        card: the card; empty for none.
        metadata: the values; an entry that is not there is left out.
    """
    data: Any
    data, text = parse_card(card)
    for name in (*_HEADER, "library_name"):
        if name in metadata:
            setattr(data, name, metadata[name])
        else:
            data.__dict__.pop(name, None)
    return f"---\n{data.to_yaml()}\n---\n\n{text}" if data.to_dict() else text


def with_loading(card: str, name: str, auto_class: str, *, own_code: bool) -> str:
    """A card that says how a model with a new head is loaded; what another's card said of its model is left out.

    Args:
        card: the card of the model that it was made of.
        name: name of the model.
        auto_class: the Auto class that loads it.
        own_code: whether its code is in the folder.
    """
    data, text = parse_card(card)
    argument = ", trust_remote_code=True" if own_code else ""
    code = f'from transformers import {auto_class}\n\nmodel = {auto_class}.from_pretrained("FOLDER_OR_ID"{argument})'
    block = f"## Loading\n\n```python\n{code}\n```\n"
    pattern = r"^## Loading\n\n```python\n.*?\n```\n"
    ours = re.search(pattern, text, flags=re.DOTALL | re.MULTILINE) if own_code else None
    text = f"# {name}\n\n{block}" if ours is None else text[: ours.start()] + block + text[ours.end() :]
    return f"---\n{data.to_yaml()}\n---\n\n{text}" if data.to_dict() else text


def _latest(results: list[EvalResult]) -> list[EvalResult]:
    """The last result for each task, data set and metric."""
    return list({(result.task_type, result.dataset_name, result.metric_type): result for result in results}.values())


def results_of(folder: Path) -> list[EvalResult]:
    """The model-index in a folder's card."""
    index = ModelCard.load(folder / CARD_FILE).data.to_dict().get("model-index") or []
    return model_index_to_eval_results(index)[1] if index else []


def settings_of(settings: Mapping[str, Any] | None) -> str | None:
    """Settings as a line of a card."""
    return json.dumps(settings) if settings else None
