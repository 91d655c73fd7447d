"""`collab heads`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..data.source import NamedSource
from ..errors import ConfigurationError
from ..heads.options import ScoreOptions
from .command import command, gathers
from .options.data import Unlabelled, data_options
from .options.heads import head_rows_options, scoring_options
from .options.model import model_in
from .session import Session

if TYPE_CHECKING:
    from ..checkpoints.heads import ScoredHeads


@dataclass(frozen=True)
class _Drawing:
    """The figures to draw, and their folder."""

    figures: Path | None
    sentences: tuple[str, ...]
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.sentences and self.figures is None:
            raise ConfigurationError("--sentence draws figures; say with --figures where to.")
        if self.layers and not self.sentences:
            raise ConfigurationError("--layer says which attention maps to draw; say with --sentence of what.")

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


def _data2(data2: str | None, unlabelled: Unlabelled) -> NamedSource | None:
    return None if data2 is None else unlabelled.source(data2)


@command(
    "collab heads ./model --data sentences.txt --figures figures",
    "collab heads ./classifier --data dev.tsv --task classification --score gradient --score ablation --json",
)
@gathers("data2", _data2)
@data_options(required=True)
@click.option("--data2", help="Other rows, to see whether the scores agree.")
@head_rows_options
@gathers("options", ScoreOptions)
@click.option(
    "--score", "scores", multiple=True, show_default="all", help="A score to compute; may be given several times."
)
@scoring_options
@gathers("drawing", _Drawing)
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), help="Draw figures into this folder.")
@click.option(
    "--sentence",
    "sentences",
    multiple=True,
    help="Draw the attention maps of this sentence; may be given several times.",
)
@click.option("--layer", "layers", type=int, multiple=True, help="Draw the maps of this layer only; from 0.")
@model_in
def heads(data: NamedSource, data2: NamedSource | None, drawing: _Drawing, session: Session) -> None:
    """Score every head of MODEL, original or converted: what it attends to, and what is lost without it."""
    session.interrupted = "Interrupted."
    session.begin()
    from ..checkpoints.heads import notes, score_heads
    from ..figures.style import figure_folder
    from .head_tables import show_scores

    if drawing.figures is not None:
        figure_folder(drawing.figures)  # before the work, so that what is missing is known at once
    sources, scored = [data], [session.call(score_heads)]
    if data2 is not None:
        sources.append(data2)
        scored.append(session.call(score_heads, model=scored[0].checkpoint, data=data2))
    names = [source if isinstance(source, str) else Path(source.path).name for source in sources]
    written = drawing.draw(scored, names)
    first, second = scored[0].scores, scored[1].scores if data2 is not None else None
    record: dict[str, Any] = first.to_dict()
    if second is not None:
        record["data2"] = second.to_dict()

    def show() -> None:
        show_scores(first, second, notes(scored[0].checkpoint))
        for file in written:
            click.echo(f"Wrote {file}")

    session.result(record, show)
