"""The model card of a converted model: where it came from, what was done, how good it is, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from ..decomposition import FORMS
from .report import ConversionReport

CARD_FILE = "README.md"
TAGS = ("collab", "collaborative-attention", "low-rank")
INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag", "datasets")


def source_metadata(folder: Path) -> dict[str, Any]:
    """The YAML header of a source model's README.md; empty if there is none or it cannot be parsed."""
    readme = folder / "README.md"
    if not readme.is_file():
        return {}
    try:
        return ModelCard.load(readme, ignore_metadata_errors=True).data.to_dict()
    except (ValueError, yaml.YAMLError, UnicodeDecodeError):
        return {}


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
