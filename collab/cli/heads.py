"""`collab heads`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.source import NamedSource
from ..errors import ConfigurationError
from ..heads.options import ScoreOptions
from ..io.options import LoadOptions
from ..processes import is_main_process
from .command import command, gathers, once, only_with
from .options.data import Unlabelled, data_options
from .options.heads import head_rows_options, scoring_options
from .options.measuring import page_options
from .options.model import model_in
from .session import Session

if TYPE_CHECKING:
    from ..checkpoints.heads import ScoredHeads
    from ..figures.heads_page import ShownModel


_ROWS = 3
"""Rows of --data on the page, if no sentence is given."""


@dataclass(frozen=True)
class _Drawing:
    """The figures to draw and their folder, and the page to write."""

    figures: Path | None
    html: Path | None
    overwrite: bool
    sentences: tuple[str, ...]
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.layers and not (self.sentences and self.figures):
            raise ConfigurationError(
                "--layer says which attention maps to draw; say with --sentence of what, and with --figures where to."
            )

    def check(self) -> None:
        """Checks, before any work is done, that everything can be written."""
        from ..figures.pages import check_page
        from ..figures.style import figure_folder

        if self.html is not None:
            check_page(self.html, self.overwrite)
        if self.figures is not None:
            figure_folder(self.figures)

    def draw(self, scored: list[ScoredHeads], names: list[str]) -> list[Path]:
        """Draws the scores on each data set; returns the files."""
        from ..figures.heads import draw_attention, draw_comparison, draw_scores

        if self.figures is None:
            return []
        first = scored[0]
        written = [*draw_scores(first.scores, self.figures)]
        if self.sentences:
            written += draw_attention(first.checkpoint, self.sentences, self.figures, self.layers or None)
        if len(scored) > 1:
            written.append(draw_comparison(first.scores, scored[1].scores, self.figures, (names[0], names[1])))
        return written

    def write(self, scored: ScoredHeads, original: ScoredHeads | None) -> list[Path]:
        """Writes the page, if there is to be one; returns the file."""
        from ..figures.heads_page import write_heads_page

        if self.html is None:
            return []
        write_heads_page(self.html, self._shown(scored), None if original is None else self._shown(original))
        return [self.html]

    def _shown(self, scored: ScoredHeads) -> ShownModel:
        from ..figures.heads_page import ShownModel
        from ..heads.maps import sentence_features

        sentences = self.sentences
        features = sentence_features(scored.checkpoint, sentences) if sentences else scored.rows.features[:_ROWS]
        return ShownModel(scored.checkpoint, scored.scores, features)


def _data2(data2: str | None, unlabelled: Unlabelled) -> NamedSource | None:
    return None if data2 is None else unlabelled.source(data2)


@command(
    "collab heads ./model --data sentences.txt --figures figures",
    'collab heads ./converted --data sentences.txt --html heads.html --against ./model --sentence "The cat sat."',
    "collab heads ./classifier --data dev.tsv --task classification --score gradient --score ablation --json",
    summary="Score attention heads by several measures.",
)
@gathers("data2", _data2)
@data_options(("data2",))
@once(click.option("--data2", help="Other rows, to see whether the scores agree."))
@head_rows_options
@gathers("options", ScoreOptions)
@click.option(
    "--score", "scores", multiple=True, show_default="all", help="A score to compute; may be given several times."
)
@scoring_options
@gathers("drawing", _Drawing)
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), help="Draw figures into this folder.")
@only_with(
    ("figures", "html"),
    click.option(
        "--sentence",
        "sentences",
        multiple=True,
        help="Draw the attention maps of this sentence; may be given several times. Without it, the page of --html "
        "shows the first rows of --data.",
    ),
)
@click.option("--layer", "layers", type=int, multiple=True, help="Draw the maps of this layer only; from 0.")
@page_options
@only_with(
    "html", click.option("--against", metavar="MODEL", help="The original, to be shown beside MODEL on the page.")
)
@model_in
def heads(
    data: NamedSource | None,
    data2: NamedSource | None,
    against: str | None,
    drawing: _Drawing,
    load_options: LoadOptions,
    session: Session,
) -> None:
    """Score every head of MODEL, original or converted: what it attends to, and what is lost without it."""
    session.interrupted = "Interrupted."
    if data is None:
        raise ConfigurationError("Scoring heads needs rows: give --data, or a --task that comes with its data.")
    session.begin(divides=True)
    from ..checkpoints.heads import notes, score_heads
    from .head_tables import show_scores

    if is_main_process():
        drawing.check()
    sources, scored = [data], [session.call(score_heads)]
    if data2 is not None:
        sources.append(data2)
        scored.append(session.call(score_heads, model=scored[0].checkpoint, data=data2))
    names = [source if isinstance(source, str) else Path(source.path).name for source in sources]
    first, second = scored[0].scores, scored[1].scores if data2 is not None else None
    record: dict[str, Any] = first.to_dict()
    if second is not None:
        record["data2"] = second.to_dict()
    written: list[Path] = []

    def show() -> None:
        show_scores(first, second, notes(scored[0].checkpoint))
        for file in written:
            click.echo(f"Wrote {file}")

    try:
        original = None
        if against is not None:
            original = session.call(score_heads, model=against, load_options=replace(load_options, revision=None))
            record["against"] = original.scores.to_dict()
        if is_main_process():
            written += drawing.draw(scored, names)
            written += drawing.write(scored[0], original)
    finally:
        session.result(record, show)  # also where nothing can be drawn: scores took long
