"""Conversion to collaborative attention, layer by layer, and the vocabulary that it may leave out."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    Step,
    installed_versions,
    plain,
    rows_text,
    short,
    shortened,
    table,
)


@dataclass(frozen=True)
class LayerConversion:
    """The conversion of one attention layer.

    Attributes:
        name: module name in the original model.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R, the number of shared query/key dimensions.
        full_rank: K, the number of query/key dimensions before.
        error: relative error ‖𝒯 - 𝒯̂‖/‖𝒯‖ of the heads' query-key products, the weights.
        score_error: relative error of the scores on calibration inputs, each weighted by its effect on the model's
            output; None without calibration.
        held_out_error: the same on the calibration rows that were held out.
        sweeps: sweeps of the solver, which like the next three is of the solve, before refinement.
        converged: whether the error had stopped falling before the sweeps ran out.
        degeneracy: Σ_r ‖a_r ∘ m_r ∘ b_r‖²/‖𝒯‖²; far above 1 means components that cancel.
        seconds: wall-clock time of the solve.
        query_key: parameters of query and key projections, with their biases before and M or cores and content bias
            after.
        output_error_before: relative squared error of the attention output on the held-out rows, as solved; None
            without refinement (`collab.refine`).
        output_error_after: the same of the layer as it is now. The first three errors are of the layer as it is now,
            too.
    """

    name: str
    form: str
    rank: int
    full_rank: int
    error: float
    score_error: float | None
    held_out_error: float | None
    sweeps: int
    converged: bool
    degeneracy: float
    seconds: float
    query_key: Count
    output_error_before: float | None = None
    output_error_after: float | None = None


@dataclass(frozen=True)
class Conversion(Founding):
    """The conversion of a model.

    Attributes:
        layers: one entry for each attention layer, in the order of the model.
        parameters: parameters before and after.
        settings: the `ConversionConfig`.
        seconds: wall-clock time of the whole conversion.
        choice: how form and ranks were chosen, if a budget was given.
        calibration: what the conversion was calibrated on; None without calibration.
        agreement: of the converted model with the original on held-out rows (`collab.evaluation.compare`).
        agreement_by_source: the same by source of the rows, if there are several.
        comparison: for each layer, the rank and predicted error of every form with as many parameters, not refined.
        notes: notes for the user.
        versions: of collab, torch, transformers, tensorly, Python.
    """

    kind: ClassVar[str] = "convert"
    title: ClassVar[str] = "Conversion"

    layers: tuple[LayerConversion, ...]
    parameters: Parameters
    settings: Json
    seconds: float
    choice: Json = field(default_factory=dict)
    calibration: DataSummary | None = None
    agreement: dict[str, float] | None = None
    agreement_by_source: dict[str, dict[str, float]] = field(default_factory=dict)
    comparison: list[Json] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=installed_versions)

    @property
    def query_key(self) -> Count:
        """Parameters of all query and key projections; see `LayerConversion.query_key`."""
        return self.parameters.query_key

    @property
    def attention(self) -> Count:
        """Parameters of attention layers, with value and output projections."""
        return self.parameters.attention

    @property
    def model(self) -> Count:
        """Parameters of the model."""
        return self.parameters.model

    def to_dict(self) -> Json:
        """The conversion as JSON values."""
        return plain({name: getattr(self, name) for name in _ORDER})

    def to_json(self) -> str:
        """The conversion as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def head(self) -> Json:
        """The whole entry: a conversion stands at the top of the report, and nowhere else."""
        return self.to_dict()

    @property
    def shares(self) -> bool:
        """Whether heads share dimensions: in the form concat each has its own."""
        return any(layer.form != "concat" for layer in self.layers)

    @property
    def narrows(self) -> bool:
        """Whether queries and keys have fewer dimensions than before."""
        return any(layer.rank < layer.full_rank for layer in self.layers)

    @property
    def adjective(self) -> str:
        """See `Step`."""
        return "collaborative" if self.shares else "with narrower heads" if self.narrows else ""

    @property
    def tags(self) -> tuple[str, ...]:
        """See `Founding`."""
        return (*["collaborative-attention"] * self.shares, *["low-rank"] * self.narrows)

    def introduction(self, original: str) -> str:
        """See `Founding`."""
        by = f"by collab {self.versions['collab']}"
        if not self.shares and not self.narrows:
            return (
                f"{original} written {by} in a layout that lets heads differ in number and width from layer to layer. "
                "By itself the layout changes nothing but rounding; what was changed stands below."
            )
        then = (
            "Each converted layer was then trained alone, without labels, to give the original's attention output."
            if self.refined
            else "The conversion does no training."
        )
        if not self.shares:
            return f"{original} with narrower queries and keys in every head, made {by} ({PAPER}). {then}"
        return (
            f"{original} with its attention layers rewritten as collaborative attention ({self.forms} form) {by}: "
            f"query and key projections shared by all heads ({PAPER}). {then}"
        )

    def counts(self) -> Parameters:
        """See `Step`."""
        return self.parameters

    @property
    def forms(self) -> str:
        """The forms of the layers."""
        return " and ".join(sorted({layer.form for layer in self.layers}))

    @property
    def refined(self) -> bool:
        """Whether layers were refined."""
        return any(layer.output_error_before is not None for layer in self.layers)

    def summary(self) -> str:
        """Form and ranks, parameters, and agreement with the original."""
        ranks = sorted({layer.rank for layer in self.layers})
        full = max(layer.full_rank for layer in self.layers)
        several = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        layers = f"{len(self.layers)} attention layer{'s' if len(self.layers) > 1 else ''}"
        text = f"Form {self.forms}, rank {several} of {full} in {layers}. {self._calibrated()}"
        parts = [text, self.parameters.table()]
        if self.agreement:
            parts += filter(None, [agreement_sentence(self.agreement), sources_text(self.agreement_by_source)])
        if self.query_key.ratio > 1:
            parts.append(f"The {self.forms} form is larger than the original at this rank; a lower rank is smaller.")
        return "\n\n".join(parts)

    def _calibrated(self) -> str:
        if self.calibration is None:
            return "Converted by the weights alone, without calibration."
        return f"Calibrated on {rows_text(self.calibration)}{', then refined layer by layer' * self.refined}."

    def details(self) -> str:
        """Errors and sizes by layer, how the form was chosen, what the other forms would have given, and notes."""
        parts = [self._errors(), self._sizes(), self._comparison(), self._choice()]
        return "\n\n".join(filter(None, [*parts, *(f"- {note}" for note in self.notes)]))

    def _errors(self) -> str:
        """The errors of every layer."""
        outputs = ["output, as solved", "refined"] * self.refined
        rows = []
        for layer in self.layers:
            errors = [layer.score_error, layer.held_out_error, layer.error]
            errors += [layer.output_error_before, layer.output_error_after] * self.refined
            rows.append([f"`{layer.name}`", *map(_error, errors)])
        text = (
            "weights: relative error of the heads' query-key products. scores: relative error of the scores on "
            "calibration inputs, each weighted by what it does to the model's output, and held out: the same on rows "
            "that were not used."
        )
        if self.refined:
            text += (
                " output: relative squared error of the layer's attention output on those rows, on the original's "
                "inputs, before and after refinement; the other errors are of the layers as they are now."
            )
        return f"{text}\n\n{table(['layer', 'scores', 'held out', 'weights', *outputs], rows)}"

    def _sizes(self) -> str:
        """Form, rank and parameters of every layer."""
        pattern, names = shortened([layer.name for layer in self.layers])
        rows = []
        for name, layer in zip(names, self.layers, strict=True):
            rank, sweeps = f"{layer.rank}/{layer.full_rank}", f"{layer.sweeps}{'' if layer.converged else '+'}"
            rows.append([f"`{name}`", layer.form, rank, sweeps, f"{layer.query_key.after:,}"])
        text = table([f"`{pattern}`", "form", "rank", "sweeps", "query/key parameters"], rows)
        if not all(layer.converged for layer in self.layers):
            text += "\n\n`+`: the solver was still gaining when its sweeps ran out; `--max-sweeps` allows more."
        return text

    def _comparison(self) -> str:
        """The predicted error and the rank of every form."""
        if not self.comparison:
            return ""
        forms = [name for name in self.comparison[0] if name != "name"]
        _, names = shortened([layer.name for layer in self.layers])
        rows = []
        for name, layer in zip(names, self.comparison, strict=True):
            predicted = (layer[form] for form in forms)
            cells = (f"{_error(form['error'])} (R={form['rank']})" if form["rank"] else "" for form in predicted)
            rows.append([f"`{name}`", *cells])
        text = "Predicted error of each form with as many parameters, before refinement:"
        return f"{text}\n\n{table(['layer', *forms], rows)}"

    def _choice(self) -> str:
        """The candidates of ``form="auto"``."""
        lines = []
        for form, candidate in self.choice.get("candidates", {}).items():
            faster: Mapping[int, float] = candidate["faster"]
            lengths = [length for length in faster if length in (32, 128, max(faster))]
            times = ", ".join(f"{faster[length]:.2f}" for length in lengths)
            lines.append(
                f"- {form}{' (chosen)' if form == self.choice['chosen'] else ''}: error {candidate['error']:.4f}, "
                f"{candidate['parameters']:,} query/key parameters, attention about {times} times as fast at "
                f"{', '.join(map(str, lengths))} tokens"
            )
        return "\n".join(lines)


_ORDER = (
    *("settings", "versions", "seconds", "parameters", "choice", "calibration", "agreement"),
    *("agreement_by_source", "layers", "comparison", "notes"),
)


@dataclass(frozen=True)
class Refinement(Step):
    """Refinement: every layer was trained alone, to give the original's attention output.

    Attributes:
        layers: by module name, the errors of every layer, in the order of the model; without layers that have no heads.
        settings: the `RefineOptions`.
        seconds: wall-clock time.
    """

    kind: ClassVar[str] = "refine"
    title: ClassVar[str] = "Refinement"

    layers: dict[str, LayerRefinement]
    settings: Json
    seconds: float

    @property
    def improved(self) -> bool:
        """Whether any layer was changed."""
        return any(layer.kept for layer in self.layers.values())

    def summary(self) -> str:
        """How many layers were changed."""
        kept = sum(layer.kept for layer in self.layers.values())
        return f"{kept} of {len(self.layers)} attention layers were brought closer to the original's output."

    def details(self) -> str:
        """The errors of every layer."""
        rows = [[f"`{name}`", short(layer.before), short(layer.error)] for name, layer in self.layers.items()]
        return table(["relative squared error of the output", "before", "after"], rows)


@dataclass(frozen=True)
class LayerRefinement:
    """Result of refining one layer.

    Attributes:
        before: relative squared error of the attention output on the held-out rows; the mean over passes if the model
            applies the layer several times.
        after: the same with the trained weights.
        kept: whether the layer has the trained weights; if not, it is unchanged.
    """

    before: float
    after: float
    kept: bool

    @property
    def error(self) -> float:
        """Error of the layer with the weights that it has now."""
        return self.after if self.kept else self.before


@dataclass(frozen=True)
class VocabularyCut(Step):
    """Tokens were left out of the vocabulary before a conversion or a compression.

    Attributes:
        texts: number of texts whose tokens stay.
        tokens: tokens of the vocabulary before and after.
        parameters: of the model before and after.
        ids: former ids of the tokens, in the order of the new ones; not in the report.
        writes: whether the model writes text, with those tokens only.
    """

    kind: ClassVar[str] = "keep_tokens"
    title: ClassVar[str] = "Vocabulary"

    texts: int
    tokens: Count
    parameters: Count
    ids: tuple[int, ...] = ()
    writes: bool = False

    def to_dict(self) -> Json:
        """The entry of the report."""
        return plain({"texts": self.texts, "tokens": self.tokens, "parameters": self.parameters})

    def summary(self) -> str:
        """The tokens that stay, and what becomes of other text."""
        written = " It can write no other tokens." if self.writes else ""
        return (
            f"The vocabulary has {self.tokens.after:,} of {self.tokens.before:,} tokens, those of {self.texts:,} "
            "texts: text of the same tokens is encoded as before, other words are split into shorter tokens or become "
            f"unknown. All parameters before that: {self.parameters.before:,}.{written}"
        )


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
