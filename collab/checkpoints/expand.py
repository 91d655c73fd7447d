"""Expands a converted model in a folder into another folder (`collab expand`)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ..conversion.expand import Expansion, require_expandable
from ..conversion.expand import expand as expand_model
from ..errors import NotConvertedError
from ..io.card import INHERITED, TAGS, render_card, source_metadata
from ..io.history import Step, read_report, table
from ..io.load import load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.staging import check_output
from ..io.write import auto_class_of, save_changed

logger = logging.getLogger(__name__)


def expand(
    model: str,
    output: str | Path,
    *,
    allow_error: float = 0.0,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Expansion:
    """Expands a converted model in a folder or on the Hub into a folder that appears whole or not at all.

    The output is an ordinary checkpoint of the native class, with the tokenizer, sentence-transformers files, license
    and unused weights of the converted one, its report with this step appended, and a new card.

    Args:
        model: folder or Hub id.
        output: folder to write.
        allow_error: largest relative error of a layer; see `collab.expand`.
        load_options: how to read the model; with trust_remote_code, a tokenizer's code is copied.
        save_options: how to write the result.
        progress: called before every phase.

    Raises:
        CollabError: as raised by `collab.load`, `collab.expand` and `collab.save`. No output is left behind.
    """
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    loaded = load(model, load_options)
    source = loaded.source.folder
    check_output(output, source, save_options.overwrite)
    try:
        family, native_class = require_expandable(loaded.model)
    except NotConvertedError as error:
        raise NotConvertedError(
            f"{model} is a {type(loaded.model).__name__}, not a converted model, so there is nothing to expand."
        ) from error
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random (seed 0): %s.", ", ".join(loaded.missing))
    progress("expanding", 0, None)
    expansion = expand_model(loaded.model, allow_error=allow_error)
    auto_class = auto_class_of(family.module, type(loaded.model))
    progress("writing and checking", 0, None)
    save_changed(
        expansion.model,
        output,
        loaded,
        [expansion_step(expansion, model, save_options.command)],
        save_options,
        card=expanded_card(source, read_report(source), output.name, native_class.__name__, auto_class),
    )
    return expansion


def expanded_card(source: Path, report: dict[str, Any], name: str, native_class: str, auto_class: str) -> str:
    """The model card, without the section from `expansion_step`.

    Args:
        source: folder of the converted model.
        report: its report.
        name: name of the expanded model.
        native_class: its class.
        auto_class: Auto class that loads it with its head.
    """
    before = source_metadata(source)
    sentence_transformers = (source / "modules.json").is_file()
    base = before.get("base_model") or report.get("source")
    settings = report.get("settings")
    return render_card(
        "expanded",
        {
            "library_name": "sentence-transformers" if sentence_transformers else "transformers",
            "tags": [*(tag for tag in before.get("tags", []) if tag not in TAGS), "collab"],
            **{key: before[key] for key in ("base_model", *INHERITED) if key in before},
        },
        title=name,
        native_class=native_class,
        original=f"`{base}`" if base else "a model",
        auto_class=auto_class,
        sentence_transformers=sentence_transformers,
        settings=json.dumps(settings) if settings else None,
        command=report.get("command"),
        later=[step.get("command") or step.get("step", "") for step in report.get("history", [])],
    )


def expansion_step(expansion: Expansion, source: str, command: str | None = None) -> Step:
    """An expansion as a section of the card and a record in the report."""
    result = expansion.to_dict()
    rows = [
        [layer.name, layer.form, str(layer.rank), f"{layer.head_rank} of {layer.head_dim}", f"{layer.error:.2e}"]
        for layer in expansion.layers
    ]
    text = (
        f"Collaborative attention was written as the query and key projections of a native `{result['native_class']}`. "
        f"On random inputs the outputs differ from the converted model's by {expansion.output_difference:.1e} at most "
        f"(their largest entry is {expansion.output_scale:.3g}).\n\n"
        + table(["layer", "form", "rank", "dimensions of a head", "relative error"], rows)
        + "\n\nDimensions: the most that a head of the layer compares, out of those of a native head. Error: of the "
        "heads' query-key products with their content, ‖S - Ŝ‖/‖S‖, S_h = [Â_h; c_hᵀ]; below 1e-6 it is rounding.\n\n"
        f"{expansion.parameters.before:,} parameters became {expansion.parameters.after:,}."
    )
    record = {"step": "expand", "model": source, "command": command, **result}
    return Step("Expansion", text, record)
