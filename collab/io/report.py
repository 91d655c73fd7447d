"""All that a folder says about its model: widths, history and card."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CheckpointError
from ..models.widths import LayerWidths, layer_widths
from ..steps.history import History
from ..steps.step import Json, plain
from .card import CARD_FILE, parse_card
from .history import REPORT_FILE, read_history
from .load import config_of, model_class_of, without_weights
from .read import Source, read_config


@dataclass(frozen=True)
class ModelReport:
    """What is known of a model that collab made.

    Attributes:
        name: the folder or Hub id.
        model_type: model type in the config.
        layers: widths of the layers.
        history: the history.
        sections: the card in Markdown without its header: a section for every step.
    """

    name: str
    model_type: str
    layers: tuple[LayerWidths, ...]
    history: History
    sections: str

    def to_dict(self) -> Json:
        """The report as JSON values."""
        named = {"name": self.name, "model_type": self.model_type, "layers": plain(self.layers)}
        return named | {"report": self.history.report}


def read_report(source: Source) -> ModelReport:
    """Reads what a folder says about its model, without reading weights.

    Raises:
        CheckpointError: if there is no model, or it has no history because collab did not make it.
        UnsupportedArchitectureError: if its attention is not supported.
    """
    raw = read_config(source.folder)
    history = read_history(source.folder)
    if not history:
        raise CheckpointError(
            f"{source.name} has no {REPORT_FILE}, so it has no history: collab did not write it, or the file was "
            "lost. To see what the model is made of, use collab inspect."
        )
    model = without_weights(model_class_of(raw, source.name), config_of(source), source.name)
    card = source.folder / CARD_FILE
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    return ModelReport(source.name, raw["model_type"], layer_widths(model), history, parse_card(text)[1])
