"""Options that several commands take, and how their values come to a command: gathered where they belong together."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from ..calibration.options import CalibrationOptions, CalibrationRequest
from ..data.source import DataSource
from ..data.task import GLUE, KINDS, Task, task_named
from ..decomposition.options import CONTENTS, METHODS, SolverOptions
from ..decomposition.options import Precision as SolverPrecision
from ..decomposition.rank import Rank
from ..errors import ConfigurationError
from ..evaluation.options import REPORTED_LENGTHS
from ..heads.options import parse_keep
from ..io.options import DTYPES, LoadOptions, SaveOptions
from ..planning.config import Refine
from ..training.options import PRECISIONS, HealOptions, HealRequest, RunOptions, Trainable

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]
Unlabelled = Literal["synthetic"] | DataSource


def gathers(name: str, build: Callable[..., object], *options: Decorator) -> Decorator:
    """Options that belong together, as a decorator of a command's function.

    The function gets one argument for all of them, called `name`: what `build` returns. `build`, often a dataclass, is
    called with those of the command's values that its parameters are named after: values of options, and what was
    gathered by decorators below.
    """

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        vars(function).setdefault("gathered", {})[name] = build
        return function

    return decorate


def gather(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a command's function, made of the values of its options.

    Raises:
        ConfigurationError: if values cannot be used, or not together.
    """
    for name, build in vars(function).get("gathered", {}).items():
        values = values | {name: build(**_called(build, values))}
    return _called(function, values)


def _called(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def together(*several: Decorator) -> Decorator:
    """Several decorators as one."""

    def decorate(function: Function) -> Function:
        for option in reversed(several):
            function = option(function)
        return function

    return decorate


class RankType(click.ParamType):
    """128, 0.5, or one of these for each layer: 128,128,96,96,64,64."""

    name = "rank"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rank | list[Rank]:
        """Reads a rank."""
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


class RefineType(click.ParamType):
    """auto, none or a number of steps."""

    name = "auto|none|steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Refine:
        """Reads how to refine."""
        if value in ("auto", "none") or isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not auto, none or a number of steps.", param, ctx)


class KeepType(click.ParamType):
    """0:1,2;3: for heads 1 and 2 of layer 0 and none of layer 3."""

    name = "heads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads which heads to keep."""
        if not isinstance(value, str):
            return value
        try:
            return parse_keep(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def command_line() -> str:
    """What was typed, for reports and cards."""
    return f"collab {shlex.join(sys.argv[1:])}"


def _none_if_empty(ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return values or None


def _default(text: str | None) -> str:
    """What the help says of a default that is no value."""
    return "" if text is None else f"  [default: {text}]"


# A model, and how to read and write it.

model_argument = click.argument("model")
output_argument = click.argument("output", type=click.Path(path_type=Path))

revision_option = gathers(
    "load_options", LoadOptions, click.option("--revision", help="Branch, tag or commit of MODEL on the Hub.")
)
loading_options = together(
    revision_option,
    click.option("--trust-remote-code", is_flag=True, help="Run a tokenizer's code that comes with the checkpoint."),
)


def _save_options(
    overwrite: bool,
    restart: bool = False,
    max_shard_size: str = SaveOptions.max_shard_size,
    base_model: str | None = None,
) -> SaveOptions:
    return SaveOptions(overwrite, restart, max_shard_size, base_model, command_line())


saving_options = gathers(
    "save_options",
    _save_options,
    click.option("--overwrite", is_flag=True, help="Replace a model that collab wrote to OUTPUT."),
)
restart_option = click.option(
    "--restart", is_flag=True, help="Forget unfinished training of OUTPUT instead of going on with it."
)


def dtype_option(default: str | None, says: str | None = None) -> Decorator:
    """--dtype, with a default or what the help says of it."""
    return click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default=default,
        show_default=default is not None,
        help=f"Dtype of the weights.{_default(says)}",
    )


def device_option(default: str = "cuda if there is a GPU, else cpu") -> Decorator:
    """--device, with what the help says of its default."""
    return click.option("--device", type=click.Choice(["cpu", "cuda"]), help=f"Where to compute.{_default(default)}")


keep_tokens_option = click.option(
    "--keep-tokens",
    metavar="FILE|auto",
    help="Leave out of tokenizer and embedding all tokens that this text does not use: a file, of a table the text in "
    "every column, or auto for the text of --calibration or --heal. Exact on text of the same tokens; other words are "
    "split or become unknown.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of everything that is drawn at random.",
)

figure_option = click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the result to this file: .png, .pdf or .svg.",
)

lengths_option = click.option(
    "--length",
    "lengths",
    type=int,
    multiple=True,
    callback=_none_if_empty,
    help="Tokens of a row; may be given several times."
    + _default(f"{', '.join(map(str, REPORTED_LENGTHS))}, or what the model takes where that is less"),
)


speed_option = click.option(
    "--speed/--no-speed",
    "measure_speed",
    default=True,
    show_default=True,
    help="Measure for a few seconds how many times as fast as the original the result is.",
)


def rounds_option(default: int) -> Decorator:
    """--rounds of a measurement of speed."""
    return click.option(
        "--rounds",
        type=int,
        default=default,
        show_default=True,
        help="Rounds of the measurement of speed, in which the models alternate.",
    )


against_option = click.option(
    "--against", metavar="MODEL", help="Another model, measured on the same rows and in turn with the first."
)

# Data.

text_column_option = click.option(
    "--text-column",
    multiple=True,
    help="Column with the text; twice for pairs. In a file without a header, its number from 0.",
)
label_column_option = click.option(
    "--label-column", help="Column with the labels. In a file without a header, its number from 0."
)
subset_option = click.option("--subset", help="Configuration of a data set on the Hub.")


def split_option(flag: str = "--split", default: str = "train") -> Decorator:
    """--split, or the split of one of several data sets."""
    return click.option(flag, default=default, show_default=True, help="Split of a data set on the Hub.")


def samples_option(default: int | None, flag: str = "--samples") -> Decorator:
    """--samples: how much of the data to use."""
    return click.option(
        flag,
        type=int,
        default=default,
        show_default=default is not None,
        help=f"Largest number of rows to use.{_default('all' if default is None else None)}",
    )


max_length_option = click.option(
    "--max-length",
    type=click.IntRange(min=1),
    help=f"Largest number of tokens in a row.{_default('as many as the model takes')}",
)

LABELLED = "a file (CSV, TSV, JSON Lines, Parquet) or a data set on the Hub"
_SOURCES = (
    "a file (text, CSV, TSV, JSON Lines, Parquet), a folder of images or of WAV files, a data set on the Hub, or "
    "synthetic (random words)"
)


def unlabelled(name: str, text_column: tuple[str, ...], subset: str | None, split: str) -> Unlabelled:
    """Random words, or a file or data set."""
    return "synthetic" if name == "synthetic" else DataSource(name, text_column, subset, split)


def _data(data: str | None, text_column: tuple[str, ...], subset: str | None, split: str) -> Unlabelled | None:
    return None if data is None else unlabelled(data, text_column, subset, split)


def data_options(*, required: bool = False, default: str | None = None) -> Decorator:
    """--data and what says where in it the rows are."""
    return gathers(
        "data",
        _data,
        click.option(
            "--data", required=required, default=default, show_default=default is not None, help=f"Rows: {_SOURCES}."
        ),
        text_column_option,
        subset_option,
        split_option(),
    )


def _task(task: str | None, metric: str | None = None) -> Task | None:
    return None if task is None else task_named(task, metric)


def task_option(default: str | None = None, kinds: Sequence[str] = KINDS) -> Decorator:
    """--task, with what the help says of its default and of its values; it is required if it has no default."""
    return gathers(
        "task",
        _task,
        click.option(
            "--task",
            metavar="TASK",
            required=default is None,
            help=f"What the labels are for: {', '.join(kinds)}; or, with its data, columns and metric, "
            f"{', '.join(GLUE)}.{_default(default)}",
        ),
    )


# Calibration and solver.


def _calibration_source(
    calibration: str | None,
    text_column: tuple[str, ...],
    calibration_subset: str | None,
    calibration_split: str,
    heal: object = None,
) -> Literal["default", "synthetic", "none"] | DataSource:
    if calibration is not None and calibration not in ("synthetic", "none"):
        return DataSource(calibration, text_column, calibration_subset, calibration_split)
    if text_column and not heal:
        raise ConfigurationError(
            "--text-column says where the text is in a file or data set; give one by --calibration."
        )
    return "default" if calibration is None else "none" if calibration == "none" else "synthetic"


def _calibration(
    calibration_source: Literal["default", "synthetic", "none"] | DataSource,
    calibration_samples: int,
    max_length: int | None,
    calibration_cache: Path | None,
    calibration_in_order: bool = False,
) -> CalibrationRequest:
    amount = CalibrationOptions(calibration_samples, max_length)
    return CalibrationRequest(calibration_source, amount, calibration_cache, calibration_in_order)


def calibration_options(*, weights_alone: bool = True) -> Decorator:
    """--calibration and what belongs to it.

    Args:
        weights_alone: whether the command can do without calibration.
    """
    without, others = ("; or none (go by the weights alone)", ", none for others") if weights_alone else ("", "")
    return together(
        gathers("calibration", _calibration),
        gathers("calibration_source", _calibration_source),
        click.option(
            "--calibration",
            metavar="SOURCE",
            help=f"Data to calibrate on: {_SOURCES}{without}.{_default(f'synthetic for models of text{others}')}",
        ),
        text_column_option,
        click.option("--calibration-subset", help="Configuration of a data set on the Hub."),
        split_option("--calibration-split"),
        samples_option(CalibrationOptions.samples, "--calibration-samples"),
        max_length_option,
        click.option(
            "--calibration-cache",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Keep the moments in this file, or use those that it holds.",
        ),
    )


solver_options = gathers(
    "solver",
    SolverOptions,
    click.option(
        "--solver",
        "method",
        type=click.Choice(METHODS),
        default=SolverOptions.method,
        show_default=True,
        help="structured: collab's own. tensorly: the reference, on the dense tensor; slow.",
    ),
    click.option(
        "--max-sweeps",
        type=int,
        default=SolverOptions.max_sweeps,
        show_default=True,
        help="Largest number of sweeps of the solver.",
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
        type=click.Choice(get_args(SolverPrecision)),
        default=SolverOptions.precision,
        show_default=True,
        help="Precision of the arithmetic.",
    ),
    device_option("cpu"),
)

content_option = click.option(
    "--content",
    type=click.Choice(CONTENTS),
    default="exact",
    show_default=True,
    help="exact: the query bias becomes an additive term of the scores. folded: it becomes an offset of the queries, "
    "so that every attention kernel applies and less is stored.",
)


def _check_params(
    ctx: click.Context, param: click.Parameter, values: float | tuple[float, ...] | None
) -> float | tuple[float, ...] | None:
    for value in values if isinstance(values, tuple) else () if values is None else (values,):
        if not 0 < value <= 1:
            raise click.BadParameter(f"{value} is not above 0 and at most 1.", ctx, param)
    return values


def _fraction_option(flag: str, of: str, budgets: str | None) -> Decorator:
    """A budget as a fraction, or, with the default `budgets`, several."""
    several = "" if budgets is None else " May be given several times." + _default(budgets)
    return click.option(
        flag,
        type=float,
        multiple=budgets is not None,
        callback=_check_params,
        help=f"The largest fraction of the {of} to keep, such as 0.5.{several}",
    )


def params_option(multiple: bool = False) -> Decorator:
    """--params, once or several times."""
    return _fraction_option("--params", "query/key parameters", "1/2, 1/3, 1/6" if multiple else None)


def flops_option(multiple: bool = False) -> Decorator:
    """--flops, once or several times."""
    return _fraction_option("--flops", "layers' FLOPs", "0.75, 0.5, 0.33, 0.25" if multiple else None)


# Training.


def training_steps_option(default: int | None) -> Decorator:
    """--steps, where they are steps of training."""
    return click.option(
        "--steps",
        type=int,
        default=default,
        show_default=default is not None,
        help=f"Steps of training, each of --batch-size rows.{_default('by --epochs' if default is None else None)}",
    )


def learning_rate_option(default: float | None, says: str | None = None) -> Decorator:
    """--learning-rate, with a default or what the help says of it."""
    return click.option(
        "--learning-rate",
        type=float,
        default=default,
        show_default=default is not None,
        help=f"The highest learning rate.{_default(says)}",
    )


def teacher_option(default: str) -> Decorator:
    """--teacher, with what the help says of its default."""
    return click.option("--teacher", metavar="MODEL", help=f"A model to learn from.{_default(default)}")


def trainable_option(default: str, flag: str = "--trainable") -> Decorator:
    """--trainable, or that of healing within another command."""
    return click.option(
        flag,
        type=click.Choice(get_args(Trainable)),
        default=default,
        show_default=True,
        help="What to train. factors: shared projections, mixing matrices or cores, content. attention: values and "
        "output projections too. layers: everything in the layers. all: the whole model.",
    )


def training_options(default: RunOptions) -> Decorator:
    """How to train, gathered as ``run`` with all other options of that name.

    Args:
        default: the values that are not given.
    """
    return gathers(
        "run",
        RunOptions,
        click.option("--batch-size", type=int, default=default.batch_size, show_default=True, help="Rows of a batch."),
        click.option(
            "--gradient-accumulation-steps",
            type=int,
            default=default.gradient_accumulation_steps,
            show_default=True,
            help="Pieces that a batch is computed in, one after the other, to save memory.",
        ),
        click.option(
            "--warmup",
            type=float,
            default=default.warmup,
            show_default=True,
            help="Part of the steps over which the learning rate rises.",
        ),
        click.option(
            "--weight-decay", type=float, default=default.weight_decay, show_default=True, help="Weight decay of AdamW."
        ),
        click.option(
            "--evaluations",
            type=int,
            default=default.evaluations,
            show_default=True,
            help="How often to measure on the held-out rows and keep a checkpoint.",
        ),
        click.option("--patience", type=int, help="Stop after so many evaluations without improvement."),
        click.option(
            "--precision",
            type=click.Choice(PRECISIONS),
            default=default.precision,
            show_default=True,
            help="Precision of the arithmetic. auto: bfloat16 where the processor multiplies it faster.",
        ),
        click.option("--gradient-checkpointing", is_flag=True, help="Less memory, more time."),
        device_option(),
        seed_option,
    )


def heal_request(source: Unlabelled, options: HealOptions, steps: int, seed: int = 0) -> HealRequest:
    """Healing within another command."""
    return HealRequest(source, replace(options, run=replace(options.run, steps=steps, seed=seed)))


def heal_options(steps: int | None, says: str | None = None) -> Decorator:
    """--heal, --heal-steps and --restart, with the default number of steps and what the help says of the source's."""
    return together(
        click.option(
            "--heal",
            metavar="SOURCE",
            help=f"Heal the result afterwards, without labels, on: {_SOURCES}.{_default(says)}",
        ),
        click.option("--heal-steps", type=int, default=steps, show_default=True, help="Steps of healing."),
        restart_option,
    )


# Heads.

normalize_option = click.option(
    "--normalize", is_flag=True, help="Divide the gradient scores of each layer by their norm."
)
