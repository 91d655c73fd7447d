"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from ..calibration.calibrate import CalibrationOptions
from ..checkpoints.calibrate import CalibrationRequest
from ..data.source import DataSource
from ..data.task import GLUE, KINDS
from ..decomposition import METHODS, SolverOptions
from ..decomposition.rank import Rank
from ..errors import ConfigurationError
from ..io.load import LoadOptions
from ..reparametrization.layer import CONTENTS
from ..training.options import Precision, RunOptions

Command = Callable[..., Any]


class RankType(click.ParamType):
    """128, 0.5, or one of these for each layer: 128,128,96,96,64,64."""

    name = "rank"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rank | list[Rank]:
        if not isinstance(value, str):
            return value
        try:
            ranks: list[Rank] = [_number(part) for part in value.split(",")]
        except ValueError:
            self.fail(
                f"{value!r} is not a rank: write 128, or 0.5 for half of the dimensions, or a list 128,96,64.",
                param,
                ctx,
            )
        return ranks if len(ranks) > 1 else ranks[0]


def _number(text: str) -> Rank:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


text_column_option = click.option(
    "--text-column",
    multiple=True,
    help="Column with the text; twice for pairs. In a file without a header, its number from 0.",
)

max_length_option = click.option(
    "--max-length", type=int, help="Tokens of a row at most.  [default: as many as the model takes]"
)

label_column_option = click.option(
    "--label-column", help="Column with the label; in a file without a header, its number from 0."
)

calibration_options = _together(
    click.option(
        "--calibration",
        metavar="SOURCE",
        help="What the scores are kept for: a file (text, CSV, TSV, JSON Lines, Parquet), a data set on the Hub, a "
        "folder of images; synthetic (random vocabulary); or none (the weights alone).  [default: synthetic for text]",
    ),
    text_column_option,
    click.option("--calibration-subset", help="Configuration of a data set on the Hub."),
    click.option("--calibration-split", default="train", show_default=True, help="Split of a data set on the Hub."),
    click.option(
        "--calibration-samples",
        type=int,
        default=CalibrationOptions.samples,
        show_default=True,
        help="Rows at most; one in eight is held back to check.",
    ),
    max_length_option,
    click.option(
        "--calibration-cache",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Keep the moments in this file, or use those that it holds.",
    ),
)

solver_options = _together(
    click.option(
        "--solver",
        type=click.Choice(METHODS),
        default="structured",
        show_default=True,
        help="structured: collab's own. tensorly: the reference, on the dense tensor; slow.",
    ),
    click.option(
        "--max-sweeps",
        type=int,
        default=SolverOptions.max_sweeps,
        show_default=True,
        help="Sweeps of the solver at most.",
    ),
    click.option(
        "--tolerance",
        type=float,
        default=SolverOptions.tolerance,
        show_default=True,
        help="Stop when a sweep lowers the relative error by less.",
    ),
    click.option(
        "--precision",
        type=click.Choice(["float32", "float64"]),
        default=SolverOptions.precision,
        show_default=True,
        help="Of the solve.",
    ),
    click.option("--device", help="Where to solve, for example cuda.  [default: cpu]"),
)

content_option = click.option(
    "--content",
    type=click.Choice(CONTENTS),
    default="exact",
    show_default=True,
    help="exact: the query bias becomes an additive term of the scores. folded: it becomes an offset of the queries, "
    "so that every attention kernel applies and less is stored.",
)

loading_options = _together(
    click.option("--revision", help="Branch, tag or commit of a model on the Hub."),
    click.option("--trust-remote-code", is_flag=True, help="Run a tokenizer's code that comes with the checkpoint."),
)

training_options = _together(
    click.option("--batch-size", type=int, default=RunOptions.batch_size, show_default=True, help="Rows in a step."),
    click.option(
        "--parts",
        type=int,
        default=RunOptions.parts,
        show_default=True,
        help="Pieces of a batch, to save memory.",
    ),
    click.option("--warmup", type=float, default=RunOptions.warmup, show_default=True, help="Part of the steps."),
    click.option("--weight-decay", type=float, help="Of AdamW.  [default: 0.01 to fine-tune, 0 to heal]"),
    click.option(
        "--evaluations",
        type=int,
        default=RunOptions.evaluations,
        show_default=True,
        help="How often to measure and keep a checkpoint.",
    ),
    click.option("--patience", type=int, help="Stop after so many evaluations without improvement."),
    click.option(
        "--precision",
        type=click.Choice(get_args(Precision)),
        default="fp32",
        show_default=True,
        help="Of the arithmetic.",
    ),
    click.option("--gradient-checkpointing", is_flag=True, help="Less memory, more time."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: a GPU where there is one]"),
    click.option("--seed", type=int, default=0, show_default=True, help="Of order, dropout and new weights."),
    max_length_option,
    click.option("--restart", is_flag=True, help="Forget unfinished work on OUTPUT instead of going on with it."),
)

data_options = _together(
    text_column_option,
    click.option("--subset", help="Configuration of a data set on the Hub."),
)

scoring_options = _together(
    data_options,
    click.option("--split", default="train", show_default=True, help="Of a data set on the Hub."),
    click.option(
        "--task",
        help=f"Score by the labels of this task: {', '.join(KINDS)}, or glue/ and a name: {', '.join(GLUE)}.  "
        "[default: by how far the model's own answers move, without labels]",
    ),
    label_column_option,
    click.option("--normalize", is_flag=True, help="Divide the gradient scores of each layer by their norm."),
    click.option("--samples", type=int, default=512, show_default=True, help="Rows at most to score on."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the sample and of what is drawn."),
)

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace a model that collab wrote to OUTPUT.")

verbosity_options = _together(
    click.option(
        "--json", "as_json", is_flag=True, help="Print the result, and nothing else, as JSON on standard output."
    ),
    click.option("-v", "--verbose", count=True, help="Say more; twice for everything."),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
)


def solver_of(given: dict[str, Any]) -> SolverOptions:
    """The solver that the options describe."""
    return SolverOptions(
        method=given["solver"],
        max_sweeps=given["max_sweeps"],
        tolerance=given["tolerance"],
        precision=given["precision"],
        device=given["device"],
    )


def calibration_of(given: dict[str, Any]) -> CalibrationRequest:
    """The calibration that the options describe."""
    source: Any = given["calibration"] or "default"
    if source not in ("default", "synthetic", "none"):
        source = DataSource(source, given["text_column"], given["calibration_subset"], given["calibration_split"])
    elif given["text_column"] and not given.get("heal"):
        raise ConfigurationError(
            "--text-column says where the text is in a file or data set; give one by --calibration."
        )
    options = CalibrationOptions(given["calibration_samples"], given["max_length"])
    return CalibrationRequest(source, options, given["calibration_cache"], given.get("calibration_in_order", False))


def run_of(given: dict[str, Any], default: RunOptions, **more: Any) -> RunOptions:
    """The training run that the options describe."""
    names = ["batch_size", "parts", "warmup", "weight_decay", "evaluations", "patience", "precision", "device", "seed"]
    names.append("gradient_checkpointing")
    return replace(default, **{name: given[name] for name in names if given[name] is not None}, **more)


def heal_source(name: str, columns: tuple[str, ...], subset: str | None, split: str) -> Any:
    """Random vocabulary, or a file or data set."""
    return name if name == "synthetic" else DataSource(name, columns, subset, split)


def loading_of(given: dict[str, Any]) -> LoadOptions:
    """How the options say to read the model."""
    return LoadOptions(given["revision"], given["trust_remote_code"])
