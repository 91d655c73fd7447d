"""`collab heads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..data.task import task_named
from .head_tables import show_scores
from .options import heal_source, loading_of, loading_options, max_length_option, scoring_options, verbosity_options
from .running import bars, failures, set_up_logging


@click.command(
    epilog="""\b
Examples:
  collab heads ./model --data sentences.txt --figures figures
  collab heads ./classifier --data dev.tsv --task classification --score gradient --score ablation --json"""
)
@click.argument("model")
@click.option("--data", required=True, help="Rows: a file, a folder of images, a data set on the Hub, or synthetic.")
@click.option("--data2", help="Other rows, to see whether the scores agree.")
@scoring_options
@click.option(
    "--score", "chosen", multiple=True, help="A score to compute; may be given several times.  [default: all]"
)
@click.option(
    "--ablation-samples", type=int, default=128, show_default=True, help="Rows at most that heads are closed on."
)
@max_length_option
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), help="Draw figures into this folder.")
@click.option("--sentence", "sentences", multiple=True, help="Draw the attention maps of this; several times for more.")
@click.option("--layer", "layers", type=int, multiple=True, help="Draw the maps of this layer only; from 0.")
@loading_options
@verbosity_options
def heads(model: str, **given: Any) -> None:
    """Score every head of MODEL, original or converted: what it attends to, and what is lost without it."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures("Interrupted."):
        from ..checkpoints.heads import notes, score_checkpoint
        from ..errors import ConfigurationError  # the rest is slow to import
        from ..figures.heads import draw_attention, draw_comparison, draw_scores
        from ..figures.style import pyplot
        from ..heads.scores import HeadScores, ScoreOptions
        from ..io.load import Loaded

        if given["sentences"] and given["figures"] is None:
            raise ConfigurationError("--sentence draws figures; say with --figures where to.")
        if given["figures"] is not None:
            pyplot()  # before the work, so that a missing package is known at once
        task = task_named(given["task"]) if given["task"] else None
        options = ScoreOptions(given["chosen"], given["ablation_samples"], given["normalize"])
        found: list[HeadScores] = []
        source: str | Loaded = model
        with bars(shown=not given["quiet"]) as progress:
            for data in filter(None, (given["data"], given["data2"])):
                scores, loaded, _ = score_checkpoint(
                    source,
                    heal_source(data, given["text_column"], given["subset"], given["split"]),
                    task=task,
                    label_column=given["label_column"],
                    samples=given["samples"],
                    max_length=given["max_length"],
                    seed=given["seed"],
                    options=options,
                    reading=loading_of(given),
                    on_done=progress.part,
                )
                found.append(scores)
                source = loaded
            written = []
            if given["figures"] is not None:
                written += draw_scores(found[0], given["figures"])
                written += draw_attention(loaded, given["sentences"], given["figures"], given["layers"] or None)
                if len(found) > 1:
                    names = (Path(given["data"]).name, Path(given["data2"]).name)
                    written.append(draw_comparison(found[0], found[1], given["figures"], names))
    if given["as_json"]:
        first, *others = (one.to_dict() for one in found)
        click.echo(json.dumps(first | ({"data2": others[0]} if others else {}), indent=2))
    elif not given["quiet"]:
        show_scores(found[0], found[1] if len(found) > 1 else None, notes(loaded))
        for file in written:
            click.echo(f"Wrote {file}")
