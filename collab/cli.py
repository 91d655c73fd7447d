"""The command line: parse, call one public function, show what it returned."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .config import ConversionConfig
from .decomposition import FORMS, METHODS, SolverOptions
from .errors import CollabError, ConfigurationError
from .exporting import ExportOptions
from .hub import check_repo_id, push
from .pipeline import LoadOptions, convert_checkpoint
from .rank import Rank
from .report import ConversionReport, LayerReport

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


class _WrongRequest(click.ClickException):
    """What was asked for cannot be done, whatever the files hold."""

    exit_code = 2


@contextlib.contextmanager
def _failures(interrupted: str = "Interrupted. Nothing was written.") -> Iterator[None]:
    """Shows expected failures as one message, and turns a termination request into an interruption that cleans up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except CollabError as error:
        raise (_WrongRequest if isinstance(error, ConfigurationError) else click.ClickException)(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException(interrupted) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _set_up_logging(verbosity: int) -> None:
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    package = logging.getLogger("collab")
    package.handlers = [handler]
    package.setLevel(level)
    package.propagate = False
    # transformers reports on every load what it does not need; what matters of it is in our own messages.
    transformers.logging.set_verbosity(level if verbosity > 0 else logging.ERROR)
    if verbosity <= 0:
        transformers.logging.disable_progress_bar()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  collab convert sentence-transformers/all-MiniLM-L6-v2 smaller --rank 128",
)
@click.version_option(version("collab"), prog_name="collab")
def main() -> None:
    """Convert pretrained transformers to collaborative attention: query and key projections shared by all heads."""


@main.command(
    epilog="""\b
Examples:
  collab convert bert-base-uncased out --rank 384
  collab convert sentence-transformers/all-MiniLM-L6-v2 out --rank 0.25 --form tucker
  collab convert ./my-model out --rank 128,128,96,96,64,64 --json > report.json"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "-r",
    "--rank",
    type=RankType(),
    required=True,
    help="Shared query/key dimensions: a number up to the original's (its hidden size in most models, where the result "
    "is exact), a fraction such as 0.5, or a list with one for each attention layer.",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="cp",
    show_default=True,
    help="cp: dimensions shared by all heads, mixed by a matrix. tucker: shared, with a core for each head; more "
    "faithful and larger at the same rank. concat: narrower heads; the cheapest to run.",
)
@click.option(
    "--solver",
    type=click.Choice(METHODS),
    default="structured",
    show_default=True,
    help="structured: collab's own. tensorly: the reference, on the dense tensor; slow.",
)
@click.option(
    "--max-sweeps", type=int, default=SolverOptions.max_sweeps, show_default=True, help="Sweeps of the solver at most."
)
@click.option(
    "--tolerance",
    type=float,
    default=SolverOptions.tolerance,
    show_default=True,
    help="Stop when a sweep lowers the relative error by less.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "float64"]),
    default=SolverOptions.precision,
    show_default=True,
    help="Of the solve.",
)
@click.option("--device", help="Where to solve, for example cuda.  [default: cpu]")
@click.option("--dtype", type=click.Choice(list(_DTYPES)), help="Of the exported weights.  [default: the checkpoint's]")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the tensorly solver's start and of weights that are missing.",
)
@click.option("--revision", help="Branch, tag or commit of a model on the Hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run a tokenizer's code that comes with the checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace a model that collab wrote to OUTPUT.")
@click.option("--max-shard-size", default=ExportOptions.max_shard_size, show_default=True, help="Largest weights file.")
@click.option("--base-model", help="Hub id of the original, for the model card.  [default: MODEL]")
@click.option("--push-to-hub", metavar="REPO", help="Upload the result to this Hub id.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, and nothing else, as JSON on standard output.")
@click.option("-v", "--verbose", count=True, help="Say more; twice for everything.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def convert(model: str, output: Path, **given: Any) -> None:
    """Convert MODEL, a folder or a Hub id, and write the result to the folder OUTPUT."""
    _set_up_logging(-1 if given["quiet"] else given["verbose"])
    with _failures():
        if given["push_to_hub"]:
            check_repo_id(given["push_to_hub"])
        config = ConversionConfig(
            rank=given["rank"],
            form=given["form"],
            solver=SolverOptions(
                method=given["solver"],
                max_sweeps=given["max_sweeps"],
                tolerance=given["tolerance"],
                precision=given["precision"],
                device=given["device"],
            ),
            seed=given["seed"],
        )
        with _progress(shown=not given["quiet"]) as advance:
            report = convert_checkpoint(
                model,
                output,
                config,
                load=LoadOptions(given["revision"], _DTYPES.get(given["dtype"]), given["trust_remote_code"]),
                write=ExportOptions(given["overwrite"], given["max_shard_size"], given["base_model"]),
                command=f"collab {shlex.join(sys.argv[1:])}",
                on_layer=advance,
            )
    url = None
    if given["push_to_hub"]:
        with _failures(f"Interrupted. {output} is complete, but was not uploaded."):
            url = push(output, given["push_to_hub"])
    if given["as_json"]:
        click.echo(report.to_json(), nl=False)
    elif not given["quiet"]:
        _show(report, output, url)


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Any]:
    """A bar on standard error that a function taking a `LayerReport` moves on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal), transient=True) as progress:
        task = progress.add_task("reading the model", total=None)

        def advance(layer: LayerReport, total: int) -> None:
            progress.update(task, description=f"{layer.name}: error {layer.error:.4f}", advance=1, total=total)

        yield advance


def _show(report: ConversionReport, output: Path, url: str | None) -> None:
    console = Console()
    pattern, names = _shortened([layer.name for layer in report.layers])
    layers = Table(
        title=f"Attention layers: {pattern}",
        caption="error: how far the heads' query-key products moved, relative to their size. concat: the same for "
        "per-head SVD at the same rank. before, after: parameters of query and key, with mixing and content bias.",
    )
    for heading in ("layer", "form", "rank", "error", "concat", "sweeps", "before", "after"):
        layers.add_column(heading, justify="left" if heading in ("layer", "form") else "right", no_wrap=True)
    for name, one in zip(names, report.layers, strict=True):
        layers.add_row(
            name,
            one.form,
            f"{one.rank}/{one.full_rank}",
            f"{one.error:.4f}",
            f"{one.concat_error:.4f}",
            f"{one.sweeps}{'' if one.converged else '+'}",
            f"{one.query_key.before:,}",
            f"{one.query_key.after:,}",
        )
    console.print(layers)
    totals = Table(title="Parameters")
    for heading in ("of", "before", "after", "after / before"):
        totals.add_column(heading, justify="left" if heading == "of" else "right")
    for name, count in (
        ("query and key (with mixing and content bias)", report.query_key),
        ("attention (with value and output projections)", report.attention),
        ("the model", report.model),
    ):
        totals.add_row(name, f"{count.before:,}", f"{count.after:,}", f"{count.ratio:.3f}")
    console.print(totals)
    if not all(one.converged for one in report.layers):
        console.print("+ the solver was still gaining when its sweeps ran out; --max-sweeps allows more.")
    if report.query_key.ratio > 1:
        console.print(
            f"The {report.layers[0].form} form is larger than the original at this rank; a lower --rank is smaller."
        )
    for note in report.notes:
        console.print(note)
    console.print(f"Converted in {report.seconds:.1f} s. Reloaded, compared and written to {output}", highlight=False)
    if url:
        console.print(f"Uploaded to {url}")


def _shortened(names: list[str]) -> tuple[str, list[str]]:
    """What module names have in common, with a star for the rest, and the rest of each."""
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts))
    start = next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)
    end = next((i for i in range(shortest - start) if len({part[-1 - i] for part in parts}) > 1), shortest - start)
    rest = [".".join(part[start : len(part) - end]) for part in parts]
    if not all(rest):
        return names[0], [name.rpartition(".")[2] for name in names]
    return ".".join([*parts[0][:start], "*", *parts[0][len(parts[0]) - end :]]), rest
