"""`collab convert`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from ..calibration.options import CalibrationRequest
from ..decomposition.options import DESCRIPTIONS, FORMS
from ..decomposition.rank import Rank
from ..device import Dtype
from ..errors import ConfigurationError
from ..io.options import SaveOptions
from ..planning.config import AllocationRule, ConversionConfig, Optimize, Refine
from ..planning.long_rows import LongOptions
from ..processes import is_main_process
from ..training.options import HealOptions, HealRequest, RunOptions
from .command import Parsed, command, gathers, grouped
from .options.calibration import calibration_options, content_option, params_option, solver_options
from .options.data import Unlabelled
from .options.long_rows import attention_option, long_options
from .options.measuring import speed_option
from .options.model import dtype_option, keep_tokens_option, model_in, model_out, seed_option, shard_option
from .options.training import heal_options
from .session import Session


def _rank(text: str) -> Rank | list[Rank]:
    """Reads 128, or 0.5, or one of these for each layer: 128,128,96,96,64,64."""
    try:
        ranks = [_number(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not a rank: write 128, or 0.5 for half of the dimensions, or a list 128,96,64."
        ) from None
    return ranks if len(ranks) > 1 else ranks[0]


def _number(text: str) -> Rank:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _refine(text: str) -> Refine:
    """Reads auto, none or a number of steps."""
    try:
        return text if text in ("auto", "none") else int(text)  # type: ignore[return-value]
    except ValueError:
        raise ConfigurationError(f"{text!r} is not auto, none or a number of steps.") from None


def _heal(
    heal: tuple[str, ...],
    unlabelled: Unlabelled,
    heal_steps: int,
    max_length: int | None,
    seed: int,
    shard: bool,
    device: str | None,
) -> HealRequest | None:
    if not heal:
        return None
    run = RunOptions(steps=heal_steps, seed=seed, shard=shard, device=device)
    return HealRequest(unlabelled.sources(heal), HealOptions(max_length=max_length, run=run))


@command(
    "collab convert bert-base-uncased out --rank 384",
    "collab convert ./my-classifier out --params 0.33 --form auto --calibration sentences.txt",
    "collab convert sentence-transformers/all-MiniLM-L6-v2 out --rank 0.25 --form tucker",
    "collab convert ./my-embedder out --rank 0.5 --attention local --max-length 4096 --positions copy",
    "collab convert ./my-model out --rank 128,128,96,96,64,64 --json > report.json",
    summary="Turn attention into collaborative attention, whose heads share dimensions.",
)
@gathers("config", ConversionConfig)
@click.option(
    "-r",
    "--rank",
    type=Parsed("rank", _rank),
    help="Shared query/key dimensions: a number up to the original's (its hidden size in most models, where the result "
    "is exact), a fraction such as 0.5, or a list with one for each attention layer.",
)
@params_option()
@click.option("--max-error", type=float, help="Largest relative error of a layer's scores, such as 0.1.")
@click.option(
    "--form",
    type=click.Choice([*FORMS, "auto"]),
    default=ConversionConfig.form,
    help=" ".join(f"{form}: {text}." for form, text in DESCRIPTIONS.items())
    + " auto: the best of them for --params or --max-error.",
)
@grouped(
    "Expert",
    click.option(
        "--optimize",
        type=click.Choice(get_args(Optimize)),
        default="size",
        help="What --form auto looks at: error and parameters, or the time estimated for a CPU at 16 to 512 tokens.",
    ),
    click.option(
        "--allocation",
        type=click.Choice(get_args(AllocationRule)),
        default="auto",
        help="How --params is divided among the layers: by what their scores lose, or the same part "
        "for each. auto: balanced, but uniform if the calibration is synthetic.",
    ),
)
@content_option
@grouped(
    "Expert",
    click.option(
        "--refine",
        type=Parsed("auto|none|steps", _refine),
        default="auto",
        help="Train each converted layer alone, on the rows of the calibration and without labels, to give the "
        "original's attention output: auto, none, or a number of steps of 32 rows.",
    ),
    click.option(
        "--compare/--no-compare", default=True, help="Predict what every form would have given with as many parameters."
    ),
)
@gathers("long", LongOptions)
@attention_option("dense")
@long_options
@gathers("heal", _heal)
@calibration_options("that of --heal, or synthetic for models of text; none for others, or if the result is exact")
@grouped(
    "Expert",
    click.option(
        "--calibration-in-order",
        is_flag=True,
        help="Calibrate every layer with the layers before it converted; as many passes as there are layers.",
    ),
)
@keep_tokens_option
@heal_options(HealOptions().run.steps)
@solver_options
@dtype_option(None, "the checkpoint's")
@seed_option
@shard_option
@model_in
@speed_option
@model_out
@grouped(
    "Output",
    click.option("--max-shard-size", default=SaveOptions.max_shard_size, help="Largest weights file."),
    click.option("--push-to-hub", metavar="REPO", help="Upload the result to this Hub id."),
)
def convert(
    output: Path,
    calibration: CalibrationRequest,
    heal: HealRequest | None,
    dtype: Dtype | None,
    push_to_hub: str | None,
    session: Session,
) -> None:
    """Convert MODEL, a folder or a Hub id, and write the result to the folder OUTPUT.

    Say how much to keep by one of --rank, --params and --max-error.
    """
    session.begin(trains=heal is not None, divides=True)
    import torch

    from ..checkpoints.convert import convert as convert_checkpoint
    from ..io.hub import check_repo_id, push
    from ..steps.conversion import Conversion
    from .outcome import finish, to_heal

    if push_to_hub is not None:
        check_repo_id(push_to_hub)
    converted = session.call(convert_checkpoint, dtype=None if dtype is None else getattr(torch, dtype))
    following = to_heal(converted, output, calibration.source) if heal is None else None
    finish(session, converted, Conversion, following)
    if push_to_hub is not None and is_main_process():
        session.interrupted = f"Interrupted. {output} is complete, but was not uploaded."
        session.progress("uploading", 0, None)
        click.echo(f"Uploaded to {push(output, push_to_hub)}", err=session.as_json)
