"""The model card of a converted model: where it came from, what was done, how good it is, how to load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from ..decomposition import FORMS
from .report import ConversionReport

TAGS = ("collab", "collaborative-attention", "low-rank")
INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag", "datasets")


def source_metadata(folder: Path) -> dict[str, Any]:
    """The metadata at the top of a source model's README.md, as far as it can be read."""
    readme = folder / "README.md"
    if not readme.is_file():
        return {}
    try:
        return ModelCard.load(readme, ignore_metadata_errors=True).data.to_dict()
    except (ValueError, yaml.YAMLError, UnicodeDecodeError):
        return {}


def write_card(
    folder: Path, report: ConversionReport, *, base_model: str, source: Path | None, auto_class: str
) -> None:
    """Writes README.md.

    Args:
        folder: the exported model.
        report: of its conversion.
        base_model: name of the original.
        source: folder of the original, whose license, pipeline tag and language are inherited.
        auto_class: the Auto class that loads the model with its head.
    """
    original = source_metadata(source) if source is not None else {}
    sentence_transformers = (folder / "modules.json").is_file()
    data = ModelCardData(
        base_model=base_model,
        library_name="sentence-transformers" if sentence_transformers else "transformers",
        tags=list(dict.fromkeys([*original.get("tags", []), *TAGS])),
        **{name: original[name] for name in INHERITED if name in original},
    )
    text = f"---\n{data.to_yaml()}\n---\n\n{_body(folder, report, base_model, auto_class, sentence_transformers)}"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _body(folder: Path, report: ConversionReport, base_model: str, auto_class: str, sentence_transformers: bool) -> str:
    form = " and ".join(sorted({one.form for one in report.layers}))
    parts = [
        f"# {base_model.rpartition('/')[2]}, collaborative",
        f"[`{base_model}`](https://huggingface.co/{base_model})" if "/" in base_model else f"`{base_model}`",
    ]
    parts[1] += (
        f" with its attention layers rewritten as collaborative attention ({form} form) by collab "
        f"{report.versions['collab']}: query and key projections shared by all heads (Cordonnier, Loukas, Jaggi 2020, "
        "[arXiv 2006.16362](https://arxiv.org/abs/2006.16362)). The conversion does no training."
    )
    loading = [f'{auto_class}.from_pretrained("FOLDER_OR_ID", trust_remote_code=True)']
    code = f"from transformers import {auto_class}\n\nmodel = {loading[0]}"
    if sentence_transformers:
        code += (
            "\n\n# or, as sentence embeddings\nfrom sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("FOLDER_OR_ID", trust_remote_code=True)'
        )
    parts += [
        "## Loading",
        f"```python\n{code}\n```",
        "The code is in this folder and needs only torch and transformers. Where collab is installed, `import collab` "
        "does instead of `trust_remote_code=True`.",
        "## What was done",
        f"```\n{report.command}\n```" if report.command else "",
        f"Settings: `{json.dumps(report.settings)}`",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in report.versions.items()) + ".",
        _parameters(report),
        _agreement(report),
        "## Error by layer",
        "weights: relative error of the heads' query-key products, ‖𝒯 - 𝒯̂‖/‖𝒯‖. scores: relative error of the "
        "scores on calibration inputs, each weighed by what it does to the model's output, and held back: the same on "
        "rows that "
        "were not used. concat, cp, tucker: predicted error of each form with as many parameters.",
        _layers(report),
        "\n".join(f"- {note}" for note in report.notes),
        "The same numbers, and more, are in `collab_report.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
            [f"| against the original, on {report.agreement['rows']} rows held back | |", "|---|---:|", *rows]
        )
    return text


def _layers(report: ConversionReport) -> str:
    forms = FORMS if report.comparison else ()
    headings = ["layer", "form", "rank", "of", "scores", "held back", "weights", *forms, "parameters before", "after"]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for number, one in enumerate(report.layers):
        others = [report.comparison[number][form]["error"] for form in forms]
        cells = [
            *(one.name, one.form, str(one.rank), str(one.full_rank)),
            *(
                "" if error is None else f"{error:.4f}"
                for error in (one.score_error, one.held_back_error, one.error, *others)
            ),
            *(f"{count:,}" for count in (one.query_key.before, one.query_key.after)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
