"""Expanding a model in a folder into another folder: what `collab expand` does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from ..conversion.expand import Expansion, expand, require_expandable
from ..errors import NotConvertedError, WeightsError
from ..io.card import INHERITED, TAGS, source_metadata
from ..io.history import Step, read_report, table
from ..io.load import LoadOptions, load
from ..io.staging import check_output
from ..io.write import auto_class_of, republish
from ..models.families import collaborative_layers

logger = logging.getLogger(__name__)


def expand_checkpoint(
    model: str,
    output: str | Path,
    *,
    allow_error: float = 0.0,
    reading: LoadOptions | None = None,
    overwrite: bool = False,
    command: str | None = None,
) -> Expansion:
    """Expands a converted model in a folder, or on the Hub, into a folder that appears whole or not at all.

    What is written is an ordinary checkpoint of the native class, with tokenizer, sentence-transformers files, license
    and unused weights of the converted one, its report with one step more, and a card of its own.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        allow_error: see `expand`.
        reading: how to read the model; a tokenizer's code that may run is copied, too.
        overwrite: replace a model that collab wrote to `output`.
        command: the command line, for report and card.

    Raises:
        CollabError: of the kind that `load`, `expand` and `republish` raise; nothing is left behind then.
    """
    reading = reading or LoadOptions()
    output = Path(output).expanduser()
    loaded = load(model, reading)
    source = loaded.source.folder
    check_output(output, source, overwrite)
    try:
        family, native_class = require_expandable(loaded.model)
    except NotConvertedError as error:
        raise NotConvertedError(
            f"{model} is a {type(loaded.model).__name__}, not a converted model, so there is nothing to expand."
        ) from error
    layers = collaborative_layers(loaded.model)
    for name in loaded.missing:
        if any(name.startswith(f"{layer}.") for layer in layers):
            raise WeightsError(f"{name} is not in the checkpoint, so there is no attention to expand.")
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random (seed 0): %s.", ", ".join(loaded.missing))
    expansion = expand(loaded.model, allow_error=allow_error)
    auto_class = auto_class_of(family.module, type(loaded.model))
    republish(
        expansion.model,
        output,
        source,
        expansion_step(expansion, model, command),
        unused=loaded.unused,
        card=expanded_card(source, read_report(source), output.name, native_class.__name__, auto_class),
        overwrite=overwrite,
        trust_remote_code=reading.trust_remote_code,
    )
    return expansion


def expanded_card(source: Path, report: dict[str, Any], name: str, native_class: str, auto_class: str) -> str:
    """The card without its section on the expansion, which is `expansion_step`.

    Args:
        source: folder of the converted model.
        report: that was in it.
        name: of the expanded model.
        native_class: its class.
        auto_class: the Auto class that loads it with its head.
    """
    before = source_metadata(source)
    sentence_transformers = (source / "modules.json").is_file()
    data = ModelCardData(
        library_name="sentence-transformers" if sentence_transformers else "transformers",
        tags=[*(tag for tag in before.get("tags", []) if tag not in TAGS), "collab"],
        **{key: before[key] for key in ("base_model", *INHERITED) if key in before},
    )
    base = before.get("base_model") or report.get("source")
    code = f'from transformers import {auto_class}\n\nmodel = {auto_class}.from_pretrained("FOLDER_OR_ID")'
    if sentence_transformers:
        code += (
            "\n\n# or, as sentence embeddings\nfrom sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("FOLDER_OR_ID")'
        )
    parts = [
        f"# {name}",
        f"A plain `{native_class}`: {f'`{base}`' if base else 'a model'} was converted to collaborative attention by "
        "collab, and then expanded back to its native class. Its query and key weights are those of the converted "
        "model, not of the original; it has the original's size again, and needs no code besides transformers.",
        "## Loading",
        f"```python\n{code}\n```",
        _conversion(report),
    ]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def expansion_step(expansion: Expansion, source: str, command: str | None = None) -> Step:
    """An expansion as a section of the card, and its record in the report."""
    found = expansion.to_dict()
    rows = [
        [one.name, one.form, str(one.rank), f"{one.head_rank} of {one.head_dim}", f"{one.error:.2e}"]
        for one in expansion.layers
    ]
    text = (
        f"Collaborative attention was written as the query and key projections of a native `{found['native_class']}`. "
        f"On random inputs the outputs differ from the converted model's by {expansion.output_difference:.1e} at most "
        f"(their largest entry is {expansion.output_scale:.3g}).\n\n"
        + table(["layer", "form", "rank", "dimensions of a head", "relative error"], rows)
        + "\n\nDimensions: the most that a head compares, of those that a native head has. Error: of the heads' "
        "query-key products with their content, ‖S - Ŝ‖/‖S‖, S_h = [Â_h; c_hᵀ]; below 1e-6 it is rounding.\n\n"
        f"{expansion.parameters.before:,} parameters became {expansion.parameters.after:,}."
    )
    record = {"step": "expand", "model": source, "command": command, **found}
    return Step("Expansion", text, record)


def _conversion(report: dict[str, Any]) -> str:
    """How the model was made that was expanded."""
    if not report.get("settings"):
        return ""
    parts = ["## Conversion", f"Settings: `{json.dumps(report['settings'])}`"]
    if report.get("command"):
        parts.insert(1, f"```\n{report['command']}\n```")
    later = [step.get("command") or step.get("step", "") for step in report.get("history", [])]
    if later:
        parts.append("Then:\n\n" + "\n".join(f"- `{one}`" for one in later))
    parts.append("Errors and more are in `collab_report.json`.")
    return "\n\n".join(parts)
