"""`collab convert`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from ..calibration.options import CalibrationRequest
from ..decomposition.options import FORMS
from ..io.options import Dtype, LoadOptions, SaveOptions
from ..planning.config import Allocation, ConversionConfig, Optimize
from ..training.options import HealOptions, HealRequest
from .options import (
    RankType,
    RefineType,
    calibration_options,
    content_option,
    dtype_option,
    gathers,
    heal_options,
    heal_request,
    keep_tokens_option,
    loading_options,
    model_argument,
    output_argument,
    params_option,
    saving_options,
    seed_option,
    solver_options,
    speed_option,
    unlabelled,
)
from .running import INTERRUPTED_TRAINING, Command, Session


def _heal(
    heal: str | None,
    heal_steps: int,
    text_column: tuple[str, ...],
    max_length: int | None,
    calibration_subset: str | None,
    calibration_split: str,
) -> HealRequest | None:
    if heal is None:
        return None
    source = unlabelled(heal, text_column, calibration_subset, calibration_split)
    return heal_request(source, HealOptions(max_length=max_length), heal_steps)


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  collab convert bert-base-uncased out --rank 384
  collab convert ./my-classifier out --params 0.33 --form auto --calibration sentences.txt
  collab convert sentence-transformers/all-MiniLM-L6-v2 out --rank 0.25 --form tucker
  collab convert ./my-model out --rank 128,128,96,96,64,64 --json > report.json""",
)
@model_argument
@output_argument
@gathers("config", ConversionConfig)
@click.option(
    "-r",
    "--rank",
    type=RankType(),
    help="Shared query/key dimensions: a number up to the original's (its hidden size in most models, where the result "
    "is exact), a fraction such as 0.5, or a list with one for each attention layer.",
)
@params_option()
@click.option("--max-error", type=float, help="Largest relative error of a layer's scores, such as 0.1.")
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
    type=click.Choice(get_args(Optimize)),
    default="size",
    show_default=True,
    help="What --form auto looks at: error and parameters, or the time estimated for a CPU at 16 to 512 tokens.",
)
@click.option(
    "--allocation",
    type=click.Choice(get_args(Allocation)),
    default="auto",
    show_default=True,
    help="How --params is divided among the layers: by what their scores lose, or the same part "
    "for each. auto: balanced, but uniform if the calibration is synthetic.",
)
@content_option
@click.option(
    "--refine",
    type=RefineType(),
    default="auto",
    show_default=True,
    help="Train each converted layer alone, on the rows of the calibration and without labels, to give the original's "
    "attention output: auto, none, or a number of steps of 32 rows.",
)
@click.option(
    "--compare/--no-compare",
    default=True,
    show_default=True,
    help="Predict what every form would have given with as many parameters.",
)
@calibration_options()
@click.option(
    "--calibration-in-order",
    is_flag=True,
    help="Calibrate every layer with the layers before it converted; as many passes as there are layers.",
)
@keep_tokens_option
@gathers("heal", _heal)
@heal_options(HealOptions().run.steps)
@solver_options
@dtype_option(None, "the checkpoint's")
@seed_option
@loading_options
@speed_option
@saving_options
@click.option("--max-shard-size", default=SaveOptions.max_shard_size, show_default=True, help="Largest weights file.")
@click.option("--base-model", help="Hub id of the original, for the model card.  [default: MODEL]")
@click.option("--push-to-hub", metavar="REPO", help="Upload the result to this Hub id.")
def convert(
    model: str,
    output: Path,
    *,
    config: ConversionConfig,
    calibration: CalibrationRequest,
    heal: HealRequest | None,
    load_options: LoadOptions,
    save_options: SaveOptions,
    dtype: Dtype | None,
    keep_tokens: str | None,
    measure_speed: bool,
    push_to_hub: str | None,
    session: Session,
) -> None:
    """Convert MODEL, a folder or a Hub id, and write the result to the folder OUTPUT.

    Say how much to keep by one of --rank, --params and --max-error.
    """
    if heal is not None:
        session.interrupted = INTERRUPTED_TRAINING
    session.begin(model)
    import torch

    from ..checkpoints.convert import convert as convert_checkpoint
    from ..io.hub import check_repo_id, push
    from ..steps.conversion import Conversion
    from .outcome import finish

    if push_to_hub is not None:
        check_repo_id(push_to_hub)
    converted = convert_checkpoint(
        model,
        output,
        config,
        calibration=calibration,
        heal=heal,
        load_options=load_options,
        save_options=save_options,
        dtype=None if dtype is None else getattr(torch, dtype),
        keep_tokens=keep_tokens,
        measure_speed=measure_speed,
        progress=session.progress,
    )
    following = (
        f"collab bench {output} --against {model}",
        f"collab heal {output} healed --data sentences.txt, or collab compress {model} half --flops 0.5",
    )
    finish(session, converted, Conversion, output=output, following=following)
    if push_to_hub is not None:
        session.interrupted = f"Interrupted. {output} is complete, but was not uploaded."
        session.progress("uploading", 0, None)
        click.echo(f"Uploaded to {push(output, push_to_hub)}", err=session.as_json)
