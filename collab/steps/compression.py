"""Compression of a whole model within a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .agreement import agreement_sentence, sources_text
from .step import (
    PAPER,
    Count,
    DataSummary,
    Founding,
    Json,
    Parameters,
    counts_table,
    installed_versions,
    plain,
    rows_text,
    table,
)


@dataclass(frozen=True)
class CompressedLayer:
    """One layer of the original, and the widths that are left.

    Attributes:
        name: module name in the original.
        dropped: whether the whole layer is gone; widths are 0 then.
        form: form of its queries and keys.
        rank: R, and `full_rank` K before.
        full_rank: K.
        value_width: width of each head's values, and `full_value_width` d before.
        full_value_width: d.
        neurons: width of the feed-forward layer, and `full_neurons` before.
        full_neurons: number of neurons before.
        cross_rank: R of attention to another sequence; None if the layer has none.
        full_cross_rank: K of that.
        cross_value_width: width of the values of each of its heads.
        full_cross_value_width: d of that.
    """

    name: str
    dropped: bool
    form: str
    rank: int
    full_rank: int
    value_width: int
    full_value_width: int
    neurons: int
    full_neurons: int
    cross_rank: int | None = None
    full_cross_rank: int | None = None
    cross_value_width: int | None = None
    full_cross_value_width: int | None = None

    HEADINGS: ClassVar[tuple[str, ...]] = ("layer", "queries and keys", "values of a head", "neurons")
    """Headings of a table with `cells` as its rows."""
    CROSS_HEADINGS: ClassVar[tuple[str, ...]] = ("cross: queries and keys", "cross: values of a head")
    """Further ones of layers that attend to another sequence."""

    def cells(self, crosses: bool = False) -> tuple[str, ...]:
        """The layer as a row of a table.

        Args:
            crosses: whether any layer in the table attends to another sequence.
        """
        if self.dropped:
            return self.name, "dropped", "", "", *[""] * len(self.CROSS_HEADINGS) * crosses
        cross = [(self.cross_rank, self.full_cross_rank), (self.cross_value_width, self.full_cross_value_width)]
        return (
            self.name,
            f"{self.rank} of {self.full_rank} ({self.form})",
            f"{self.value_width} of {self.full_value_width}",
            f"{self.neurons} of {self.full_neurons}",
            *["" if full is None else f"{left} of {full}" for left, full in cross if crosses],
        )

    @property
    def changed(self) -> tuple[bool, bool, bool]:
        """Whether queries and keys, values and the feed-forward layer are narrower."""
        return (
            self.rank < self.full_rank or (self.cross_rank or 0) < (self.full_cross_rank or 0),
            self.value_width < self.full_value_width
            or (self.cross_value_width or 0) < (self.full_cross_value_width or 0),
            self.neurons < self.full_neurons,
        )


@dataclass(frozen=True)
class Trial:
    """A number of layers to drop that was tried.

    Attributes:
        dropped: the number.
        predicted_loss: predicted disagreement with the original before any training.
        healed_loss: disagreement on held-out rows, measured after healing for a short time.
    """

    dropped: int
    predicted_loss: float
    healed_loss: float


@dataclass(frozen=True)
class Compression(Founding):
    """The compression of a model.

    Attributes:
        layers: what is left of every layer of the original.
        flops: FLOPs of the layers, two for a multiply-add, for one row of `CompressionConfig.length` tokens, before and
            after.
        parameters: of the whole model, before and after.
        predicted_loss: predicted disagreement with the original, before any training: the sum over all changes, each
            measured alone.
        agreement: of the compressed model with the original on held-out rows (`collab.evaluation.compare`).
        agreement_by_source: the same by source of the rows, if there are several.
        speedup: times as fast as the original, measured on `CompressionConfig.rows` rows of that length on this
            machine; None if the budget was another.
        refitted: number of output projections that were refitted in sequence (`collab.compression.refit`).
        trials: the numbers of layers to drop that were tried; empty if there was no doubt.
        settings: the `CompressionConfig`.
        calibration: what the compression was calibrated on.
        notes: notes for the user.
        seconds: wall-clock time.
        parts: parameters of queries and keys, of attention and of the model; at the top of the report.
        versions: of Python and the packages; at the top of the report, too.
        reading_speedup: of a model that writes, the part of `speedup` that is reading and the first token.
        step_speedup: the part that is each further token.
        step_bytes: bytes of weights that the layers read to write a token, before and after; None without a decoder.
        step_bytes_with_vocabulary: the same with the projection to the vocabulary.
    """

    kind: ClassVar[str] = "compress"
    title: ClassVar[str] = "Compression"

    layers: tuple[CompressedLayer, ...]
    flops: Count
    parameters: Count
    predicted_loss: float
    agreement: dict[str, float] | None
    agreement_by_source: dict[str, dict[str, float]]
    speedup: float | None
    refitted: int
    settings: Json
    calibration: DataSummary
    notes: tuple[str, ...]
    seconds: float
    parts: Parameters
    versions: dict[str, str] = field(default_factory=installed_versions)
    trials: tuple[Trial, ...] = ()
    reading_speedup: float | None = None
    step_speedup: float | None = None
    step_bytes: Count | None = None
    step_bytes_with_vocabulary: Count | None = None

    def to_dict(self) -> Json:
        """The step as an entry of the report."""
        elsewhere = ("parts", "versions")
        return {name: value for name, value in super().to_dict().items() if name not in elsewhere}

    def head(self) -> Json:
        """The entries at the top of the report."""
        common = ("settings", "versions", "seconds", "calibration", "agreement", "agreement_by_source", "notes")
        return plain({name: getattr(self, name) for name in common} | {"choice": {}, "layers": [], "comparison": []})

    @property
    def adjective(self) -> str:
        """See `Step`."""
        return "compressed"

    @property
    def tags(self) -> tuple[str, ...]:
        """See `Founding`."""
        shared = any(layer.form != "concat" for layer in self._kept)
        narrower = any(layer.changed[0] for layer in self._kept)
        return ("compressed", *["collaborative-attention"] * shared, *["low-rank"] * narrower)

    @property
    def _kept(self) -> list[CompressedLayer]:
        return [layer for layer in self.layers if not layer.dropped]

    def introduction(self, original: str) -> str:
        """See `Founding`."""
        kept, dropped = self._kept, len(self.layers) - len(self._kept)
        changes = {
            f"narrower queries and keys ({PAPER})": any(layer.changed[0] for layer in kept),
            "narrower values": any(layer.changed[1] for layer in kept),
            "fewer neurons": any(layer.changed[2] for layer in kept),
            f"{len(kept)} of its {len(self.layers)} layers": dropped > 0,
        }
        *others, last = [change for change, made in changes.items() if made] or ["nothing left out"]
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"{original} made smaller by collab {self.versions['collab']}, without labels: {listed}."

    def counts(self) -> Parameters:
        """See `Step`."""
        return self.parts

    def summary(self) -> str:
        """Arithmetic, parameters, and agreement; with healing to come, its step says how well the model agrees."""
        counts = {
            f"FLOPs of the layers, {self.settings['length']} tokens": self.flops,
            "parameters of the model": self.parameters,
            "bytes that the layers read to write a token": self.step_bytes,
            "the same with the vocabulary's": self.step_bytes_with_vocabulary,
        }
        text = f"Narrowed in closed form on {rows_text(self.calibration)}.\n\n" + counts_table(
            "", {name: count for name, count in counts.items() if count is not None}
        )
        if self.reading_speedup is not None and self.step_speedup is not None:
            text += (
                f"\n\n{self.speedup:.2f} times as fast at {self.settings['rows']} rows of {self.settings['length']} "
                f"tokens and {self.settings['new_tokens']} written ones: {self.reading_speedup:.2f} times at reading "
                f"and the first token, {self.step_speedup:.2f} times at each further one."
            )
        return text if self.settings.get("healed") else "\n\n".join([text, *self._agreement_text()])

    def details(self) -> str:
        """The widths of every layer, notes and, with healing to come, the agreement before it."""
        agreement = self._agreement_text() if self.settings.get("healed") else []
        crosses = any(layer.full_cross_rank is not None for layer in self.layers)
        headings = CompressedLayer.HEADINGS + CompressedLayer.CROSS_HEADINGS * crosses
        rows = [[f"`{name}`", *widths] for name, *widths in (layer.cells(crosses) for layer in self.layers)]
        notes = (f"- {note}" for note in self.notes)
        return "\n\n".join([*agreement, table(headings, rows), *self._trials_text(), *notes])

    def _trials_text(self) -> list[str]:
        """The sentence about the numbers of layers to drop that were tried, if any were."""
        if not self.trials:
            return []
        tried = ", ".join(f"{trial.healed_loss:.4f} with {trial.dropped or 'none'} dropped" for trial in self.trials)
        return [
            "The number of layers to drop is that with the least disagreement with the original after healing for a "
            f"short time: {tried}."
        ]

    def _agreement_text(self) -> list[str]:
        """The sentence about the agreement before any training, if it was measured."""
        if not self.agreement:
            return []
        sentence = agreement_sentence(self.agreement, "Before any training,")
        return list(filter(None, [sentence, sources_text(self.agreement_by_source)]))
