"""The end of a command: the steps that were done, as their sections of the card say them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table

from ..data.source import DataSource, Mixture
from ..models.families import collaborative_layers
from ..models.inputs import InputKind, input_kind
from ..processes import is_main_process
from ..steps.compression import Compression
from ..steps.conversion import Conversion, VocabularyCut
from ..steps.export import Export
from ..steps.measurement import Speed
from ..steps.step import Founding

if TYPE_CHECKING:
    from ..io.checkpoint import Checkpoint
    from ..steps.step import Json, Step
    from .session import Session


class _Table(TableElement):
    """A table of a card, whose names are wrapped instead of cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                part.collapse_padding, part.pad_edge = True, False
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class _Card(Markdown):
    elements = {**Markdown.elements, "table_open": _Table}


def show_steps(steps: Sequence[Step], *, details: bool = True) -> None:
    """Prints steps as their sections of the card, or only the summaries of them."""
    for step in steps:
        show_markdown(step.section() if details else step.summary())


def show_markdown(text: str) -> None:
    """Prints a card, or a section of one."""
    console = Console()
    with console.capture() as capture:
        console.print(_Card(text))
    click.echo(re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", capture.get()).strip())


def finish(
    session: Session,
    checkpoint: Checkpoint,
    kind: type[Step],
    following: list[str] | None = None,
    served: tuple[Path, Checkpoint] | None = None,
) -> None:
    """Shows the outcome of a command: the summary of its steps, with ``-v`` their details, and what to do next.

    Args:
        session: the command's.
        checkpoint: the outcome.
        kind: the type of the command's own step. Steps before it prepare it, and are not shown.
        following: the words of a command that the user may want next.
        served: the folder of the graph that was written of the outcome, and the graph with its steps.
    """
    if not is_main_process():  # which wrote the result, and has its history
        return
    first = next(number for number, step in enumerate(checkpoint.steps) if isinstance(step, kind))
    steps = checkpoint.steps[first:]

    def show() -> None:
        show_steps(steps, details=session.verbosity > 0)
        founded = any(isinstance(step, Founding) for step in checkpoint.steps)
        for note in checkpoint.history.report["notes"] if founded else ():
            click.echo(note)
        checked = ": reloaded, and equal to the model in memory" if kind is not Export else ""
        click.echo(f"Wrote {session.output}{checked}.")
        if served is not None:
            folder, graph = served
            click.echo()
            show_steps(graph.steps, details=False)
            click.echo(f"Wrote {folder}.")
        if following is not None:
            click.echo(f"Next: {shlex.join(following)}")

    record = _record(checkpoint, steps)
    if served is not None:
        record |= {"served": {step.kind: step.to_dict() for step in served[1].steps}}
    session.result(record, show)


_PLACEHOLDERS: dict[InputKind, str] = {
    "text": "sentences.txt",
    "images": "images",
    "videos": "videos",
    "audio": "recordings",
}
"""What stands in a next command for rows that this one had none of."""


def to_heal(checkpoint: Checkpoint, output: Path, source: Any, *more: str) -> list[str] | None:
    """The words of the command that heals the result of this one, with its rows; None where it could not.

    Args:
        checkpoint: the result.
        output: its folder.
        source: the rows of this command, as `Unlabelled.sources` gives them.
        more: further words.
    """
    if checkpoint.step(VocabularyCut) is not None or input_kind(checkpoint.model) == "videos":
        return None  # the original reads other tokens; nothing reads rows of videos
    teacher = ["--teacher", "FINETUNED"] if "finetune" in checkpoint.history.kinds else []
    rows = _same_rows("--data", checkpoint, source)
    return ["collab", "heal", str(output), "healed", *rows, *more, *teacher]


def _same_rows(option: str, checkpoint: Checkpoint, source: Any) -> list[str]:
    """The words by which a next command, which names them by an option, reads the rows of this one."""
    mixture = source if isinstance(source, Mixture) else Mixture({"": source})
    named = {name: each for name, each in mixture.sources.items() if isinstance(each, DataSource)}
    if not named:
        return [option, _PLACEHOLDERS[input_kind(checkpoint.model)]]
    words = []
    for name, each in mixture.sources.items():
        weight = mixture.weight(name)
        words += [option, getattr(each, "path", "synthetic") + (f"={weight:g}" if weight != 1 else "")]
    columns = dict.fromkeys(column for each in named.values() for column in each.columns)  # text files have none
    words += [part for column in columns for part in ("--text-column", column)]
    first, prefix = next(iter(named.values())), "--" if option == "--data" else f"{option}-"
    words += [] if first.subset is None else [f"{prefix}subset", first.subset]
    return [*words, f"{prefix}split", first.split] if first.split != DataSource.split else words


def to_serve(checkpoint: Checkpoint, output: Path, source: Any) -> list[str] | None:
    """As `to_heal`, of the command that writes a graph."""
    if any(layer.spec.long is not None for layer in collaborative_layers(checkpoint.model).values()):
        return None  # attention in blocks
    words = ["collab", "export", str(output), "served", "--format", "openvino", "--precision", "int8"]
    return words + _same_rows("--calibration", checkpoint, source)


def _record(checkpoint: Checkpoint, steps: Sequence[Step]) -> Json:
    """The entry of a command's step, with those of later steps as ``history``; of a conversion the whole report."""
    first, *later = (step for step in steps if not isinstance(step, Speed))
    if isinstance(first, Conversion):
        return checkpoint.history.report
    entry, *entries = checkpoint.history.entries[-1 - len(later) :]
    history = {"history": entries} if entries or isinstance(first, Compression) else {}
    speed = {step.kind: step.to_dict() for step in steps if isinstance(step, Speed)}
    return entry | history | speed
