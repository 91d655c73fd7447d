"""Every refusal: of the encoders of the installed transformers, and of classes and settings of those that convert.

    python benchmarks/refusals.py

Writes results/refusals.json and .md. Ten seconds. The rows are

- every `model_type` of `collab/models/refusals.py` and every one that an Auto class of transformers loads for a task of
  encoders, with the classes of these tasks, the reason and what to do;
- every class that an Auto class loads for a family that converts, and that does not convert itself;
- every family whose config is refused with cross-attention, or with positions of another kind.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from common import machine, write
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

from collab.conversion.convert import require_convertible
from collab.errors import CollabError
from collab.modeling.collab_family import auto_loaded
from collab.models.families import families, require_family
from collab.models.refusals import REFUSALS, refusal_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from encoders import encoders

Row = dict[str, Any]
POSITIONS = "position_embedding_type"
SETTINGS: dict[str, dict[str, Any]] = {
    "cross-attention": {"add_cross_attention": True},
    "relative positions": {POSITIONS: "relative_key"},
    "absolute positions": {POSITIONS: "absolute"},
    "relative positions with projections of their own": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
}


def architectures() -> Iterator[Row]:
    """Every `model_type` that is refused, from a config that says no more than that."""
    classes = encoders()
    for model_type in sorted({*REFUSALS, *classes} - {*families()}):
        config = PretrainedConfig()
        config.model_type = model_type
        refusal = refusal_of(model_type)
        message = refused(lambda config=config: require_family(config))
        if message is None or not message.startswith(
            f"Models of type {model_type!r} cannot be converted: {refusal.because}. {refusal.instead}"
        ):
            raise SystemExit(f"{model_type} is refused with {message!r}.")
        names = classes.get(model_type) or modeling_auto.MODEL_MAPPING_NAMES.get(model_type) or []
        yield {
            "model_type": model_type,
            "classes": [names] if isinstance(names, str) else list(names),
            "reason": refusal.because,
            "advice": refusal.instead,
        }


def classes_of_families() -> Iterator[Row]:
    """Classes of families that convert, which do not; built without weights, from the config's defaults."""
    for family in families().values():
        config = family.base.native_class().config_class
        for native in dict.fromkeys(auto_loaded(config)):
            if family.collaborative_class(native) is None:
                with torch.device("meta"):
                    model = native(config())
                message = refused(lambda model=model: require_convertible(model))
                yield {"model_type": family.native_model_type, "class": native.__name__, "message": message}


def settings_of_families() -> Iterator[Row]:
    """Settings with which a family that converts does not; none that it accepts, or does not have."""
    for family in families().values():
        for setting, values in SETTINGS.items():
            config_class = family.base.native_class().config_class
            # Old configs of every family may name the kind of its positions, even where transformers 5 ignores it.
            if not all(name == POSITIONS or hasattr(config_class(), name) for name in values):
                continue
            config = config_class(**{POSITIONS: family.base.position_type} | values)
            if (message := refused(lambda config=config: require_family(config))) is not None:
                yield {"model_type": family.native_model_type, "setting": setting, "message": message}


def refused(call: Any) -> str | None:
    """The message that a call is refused with, or None."""
    try:
        call()
    except CollabError as error:
        return str(error)
    return None


def table(result: dict[str, Any]) -> str:
    """A section for each reason, then the two tables of families that convert."""
    rows = result["architectures"]
    version = result["machine"]["versions"]["transformers"]
    parts = [
        f"Of the {len(encoders())} architectures that transformers {version} loads for the tasks of encoders, "
        f"{len(set(encoders()) & set(families()))} are converted. These {len(rows)} are refused, some decoders "
        "and parts of larger models among them; each line is `model_type`: the classes that transformers loads."
    ]
    for reason, advice in dict.fromkeys((row["reason"], row["advice"]) for row in rows):
        lines = [
            f"- `{row['model_type']}`" + (f": {', '.join(row['classes'])}" if row["classes"] else "")
            for row in rows
            if (row["reason"], row["advice"]) == (reason, advice)
        ]
        parts += [f"**Cannot be converted: {reason}.** {advice}", "\n".join(lines)]
    parts += ["### Classes of families that convert"]
    parts += ["\n".join(f"- {row['message']}" for row in result["classes"])]
    parts += ["### Settings of families that convert"]
    types: dict[tuple[str, str], list[str]] = {}
    for row in result["settings"]:
        types.setdefault((row["setting"], row["message"]), []).append(f"`{row['model_type']}`")
    parts += ["\n".join(f"- {setting} ({', '.join(names)}): {text}" for (setting, text), names in types.items())]
    return "\n\n".join(parts)


def main() -> None:
    """Asks for everything."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    result = {
        "machine": machine(),
        "architectures": list(architectures()),
        "classes": list(classes_of_families()),
        "settings": list(settings_of_families()),
    }
    write("refusals", result, table(result))


if __name__ == "__main__":
    main()
