"""The model card of a converted model: where it came from, what was done, how good it is, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..decomposition import FORMS
from .report import ConversionReport

CARD_FILE = "README.md"
TAGS = ("collab", "collaborative-attention", "low-rank")
# Whether an entry of a header is always a list.
_HEADER = {
    **dict.fromkeys(("license", "license_name", "license_link", "language", "datasets", "base_model"), False),
    "pipeline_tag": False,
    "tags": True,
}
INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag", "datasets")


def source_metadata(folder: Path) -> dict[str, Any]:
    """The YAML header of a source model's README.md; empty if there is none or it cannot be parsed."""
    readme = folder / CARD_FILE
    if not readme.is_file():
        return {}
    return parse_card(readme.read_text(encoding="utf-8", errors="replace"))[0].to_dict()


def parse_card(content: str) -> tuple[ModelCardData, str]:
    """A card's header, without entries that are not of the Hub's types, and its text.

    A card is prose by anybody: one that cannot be parsed is all text.
    """
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


def render_card(template: str, metadata: Mapping[str, Any], **values: Any) -> str:
    """A model card from a template of this package.

    Args:
        template: file name in `collab/io/templates`, without its suffix.
        metadata: entries of the card's header; see `huggingface_hub.ModelCardData`.
        values: variables of the template.
    """
    path = Path(__file__).parent / "templates" / f"{template}.md"
    return str(ModelCard.from_template(ModelCardData(**metadata), template_path=str(path), **values))


def write_card(
    folder: Path,
    report: ConversionReport,
    *,
    base_model: str,
    source: Path | None,
    auto_class: str,
    template: str = "converted",
) -> None:
    """Writes README.md.

    Args:
        folder: folder of the exported model.
        report: report of its conversion.
        base_model: name of the original.
        source: folder of the original, whose license, pipeline tag and language are inherited.
        auto_class: the Auto class that loads the model with its head.
        template: as in `render_card`.
    """
    original = source_metadata(source) if source is not None else {}
    sentence_transformers = (folder / "modules.json").is_file()
    text = render_card(
        template,
        {
            "base_model": base_model,
            "library_name": "sentence-transformers" if sentence_transformers else "transformers",
            "tags": list(dict.fromkeys([*original.get("tags", []), *TAGS])),
            **{name: original[name] for name in INHERITED if name in original},
        },
        title=base_model.rpartition("/")[2],
        original=f"[`{base_model}`](https://huggingface.co/{base_model})" if "/" in base_model else f"`{base_model}`",
        forms=" and ".join(sorted({layer.form for layer in report.layers})),
        auto_class=auto_class,
        sentence_transformers=sentence_transformers,
        command=report.command,
        settings=json.dumps(report.settings),
        versions=report.versions,
        parameters=_parameters(report),
        agreement=_agreement(report),
        layers=_layers(report),
        refined=any(layer.output_error_before is not None for layer in report.layers),
        notes=report.notes,
    )
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def _parameters(report: ConversionReport) -> str:
    rows = [
        ("query and key projections, mixing and content bias included", report.query_key),
        ("attention (the same with value and output projections)", report.attention),
        ("model", report.model),
    ]
    lines = ["| parameters | before | after | after / before |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {count.before:,} | {count.after:,} | {count.ratio:.3f} |" for name, count in rows]
    return "\n".join(lines)


def _agreement(report: ConversionReport) -> str:
    if report.calibration is None:
        return "Converted by the weights alone, without calibration."
    text = f"Calibrated on `{json.dumps(report.calibration)}`."
    if report.agreement:
        values = (item for item in report.agreement.items() if item[0] != "rows")
        rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in values]
        text += "\n\n" + "\n".join(
            [f"| against the original, on {report.agreement['rows']} held-out rows | |", "|---|---:|", *rows]
        )
    return text


def _layers(report: ConversionReport) -> str:
    forms = FORMS if report.comparison else ()
    refined = any(layer.output_error_before is not None for layer in report.layers)
    outputs = ["output, as solved", "refined"] * refined
    headings = ["layer", "form", "rank", "of", "scores", "held out", "weights", *outputs, *forms]
    headings += ["parameters before", "after"]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for number, layer in enumerate(report.layers):
        others = [report.comparison[number][form]["error"] for form in forms]
        if refined:
            others = [layer.output_error_before, layer.output_error_after, *others]
        cells = [
            *(layer.name, layer.form, str(layer.rank), str(layer.full_rank)),
            *(
                "" if error is None else f"{error:.4f}"
                for error in (layer.score_error, layer.held_out_error, layer.error, *others)
            ),
            *(f"{count:,}" for count in (layer.query_key.before, layer.query_key.after)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
