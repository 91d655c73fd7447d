"""`collab convert`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from ..checkpoints.convert import convert_checkpoint
from ..decomposition import FORMS
from ..io.hub import check_repo_id, push
from ..io.write import ExportOptions
from ..planning.config import ConversionConfig
from ..training.options import HealOptions, HealRequest
from .options import (
    RankType,
    calibration_of,
    calibration_options,
    content_option,
    heal_source,
    loading_of,
    loading_options,
    overwrite_option,
    solver_of,
    solver_options,
    verbosity_options,
)
from .running import INTERRUPTED_TRAINING, bars, command_line, failures, set_up_logging
from .tables import show_report

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@click.command(
    epilog="""\b
Examples:
  collab convert bert-base-uncased out --rank 384
  collab convert ./my-classifier out --params 0.33 --form auto --calibration sentences.txt
  collab convert sentence-transformers/all-MiniLM-L6-v2 out --rank 0.25 --form tucker
  collab convert ./my-model out --rank 128,128,96,96,64,64 --json > report.json"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "-r",
    "--rank",
    type=RankType(),
    help="Shared query/key dimensions: a number up to the original's (its hidden size in most models, where the result "
    "is exact), a fraction such as 0.5, or a list with one for each attention layer.",
)
@click.option(
    "--params", type=float, help="Instead: the part of the query/key parameters to keep at most, such as 0.5."
)
@click.option("--max-error", type=float, help="Instead: the relative error of a layer's scores at most, such as 0.1.")
@click.option(
    "--form",
    type=click.Choice([*FORMS, "auto"]),
    default="cp",
    show_default=True,
    help="cp: dimensions shared by all heads, mixed by a matrix. tucker: shared, with a core for each head; more "
    "faithful and larger at the same rank. concat: narrower heads; the cheapest to run. auto: the best of them for "
    "--params or --max-error.",
)
@click.option(
    "--optimize",
    type=click.Choice(["size", "speed"]),
    default="size",
    show_default=True,
    help="What --form auto looks at: error and parameters, or the time estimated for a CPU at 16 to 512 tokens.",
)
@click.option(
    "--allocation",
    type=click.Choice(["auto", "balanced", "uniform"]),
    default="auto",
    show_default=True,
    help="How --params is divided among the layers: by what their scores lose, or the same part "
    "for each. auto: balanced, but uniform if the calibration is synthetic.",
)
@content_option
@click.option(
    "--compare/--no-compare",
    default=True,
    show_default=True,
    help="Predict what every form would have given with as many parameters.",
)
@calibration_options
@click.option(
    "--calibration-in-order",
    is_flag=True,
    help="Calibrate every layer with the layers before it converted; as many passes as there are layers.",
)
@click.option(
    "--heal",
    metavar="SOURCE",
    help="Train what is new against the original, without labels, on a file or data set of text, or synthetic. The "
    "text calibrates too, if nothing else is named.",
)
@click.option("--heal-steps", type=int, default=HealOptions().run.steps, show_default=True, help="Steps of 32 rows.")
@click.option("--restart", is_flag=True, help="Forget unfinished healing of OUTPUT instead of going on with it.")
@solver_options
@click.option("--dtype", type=click.Choice(list(_DTYPES)), help="Of the exported weights.  [default: the checkpoint's]")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the tensorly solver's start and of weights that are missing.",
)
@loading_options
@overwrite_option
@click.option("--max-shard-size", default=ExportOptions.max_shard_size, show_default=True, help="Largest weights file.")
@click.option("--base-model", help="Hub id of the original, for the model card.  [default: MODEL]")
@click.option("--push-to-hub", metavar="REPO", help="Upload the result to this Hub id.")
@verbosity_options
def convert(model: str, output: Path, **given: Any) -> None:
    """Convert MODEL, a folder or a Hub id, and write the result to the folder OUTPUT.

    Say how much to keep by --rank, --params or --max-error.
    """
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures(INTERRUPTED_TRAINING if given["heal"] else "Interrupted. Nothing was written."):
        if given["push_to_hub"]:
            check_repo_id(given["push_to_hub"])
        config = ConversionConfig(
            **{
                name: given[name]
                for name in (
                    "rank",
                    "params",
                    "max_error",
                    "form",
                    "optimize",
                    "allocation",
                    "content",
                    "compare",
                    "seed",
                )
            },
            solver=solver_of(given),
        )
        heal = None
        if given["heal"]:
            run = replace(HealOptions().run, steps=given["heal_steps"])
            options = HealOptions(max_length=given["max_length"], run=run)
            heal = HealRequest(
                heal_source(
                    given["heal"], given["text_column"], given["calibration_subset"], given["calibration_split"]
                ),
                options,
                given["restart"],
            )
        with bars(shown=not given["quiet"]) as progress:
            report = convert_checkpoint(
                model,
                output,
                config,
                calibration=calibration_of(given),
                heal=heal,
                reading=loading_of(given),
                writing=ExportOptions(given["overwrite"], given["max_shard_size"], given["base_model"]),
                dtype=_DTYPES.get(given["dtype"]),
                command=command_line(),
                on_batch=progress.batch,
                on_layer=progress.layer,
                on_step=progress.step,
            )
    if given["as_json"]:
        click.echo(report.to_json(), nl=False)
    elif not given["quiet"]:
        show_report(report, output)
    if given["push_to_hub"]:
        with failures(f"Interrupted. {output} is complete, but was not uploaded."):
            url = push(output, given["push_to_hub"])
        click.echo(f"Uploaded to {url}", err=given["as_json"])
