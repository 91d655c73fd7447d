"""`collab bench`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from ..evaluation.bench import LENGTHS, BenchOptions, Dtype
from ..figures.plan import draw_bench
from ..figures.style import check_figure
from ..io.load import LoadOptions
from .options import verbosity_options
from .running import bars, failures, set_up_logging
from .tables import show_bench

_DEFAULTS = BenchOptions()


@click.command(
    epilog="""\b
Examples:
  collab bench converted --against original
  collab bench converted --against original --batch-size 1 --length 16 --length 64 --figure speed.png"""
)
@click.argument("model")
@click.option("--against", metavar="MODEL", help="Another model, measured in turn with the first, call by call.")
@click.option(
    "--batch-size",
    type=int,
    multiple=True,
    help=f"Rows of a batch; may be given several times.  [default: {', '.join(map(str, _DEFAULTS.batch_sizes))}]",
)
@click.option(
    "--length",
    type=int,
    multiple=True,
    help="Tokens of a row; may be given several times.  "
    f"[default: {', '.join(map(str, LENGTHS))}, or what the model takes where that is less]",
)
@click.option("--rounds", type=int, default=_DEFAULTS.rounds, show_default=True, help="Calls of each model.")
@click.option(
    "--dtype",
    type=click.Choice(get_args(Dtype)),
    default=_DEFAULTS.dtype,
    show_default=True,
    help="Of weights and arithmetic.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: a GPU where there is one]")
@click.option("--compile", "compiled", is_flag=True, help="Run the models through torch.compile.")
@click.option(
    "--memory/--no-memory",
    default=True,
    show_default=True,
    help="Measure peak memory; on a CPU each model is loaded once more for that, in a process of its own.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="Draw the speeds to this file.")
@click.option("--revision", help="Branch, tag or commit of MODEL on the Hub.")
@verbosity_options
def bench(model: str, against: str | None, figure: Path | None, **given: Any) -> None:
    """Measure speed, memory and size of MODEL, original or converted, on random inputs without padding."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures("Interrupted."):
        options = BenchOptions(
            batch_sizes=given["batch_size"] or _DEFAULTS.batch_sizes,
            lengths=given["length"] or None,
            compile=given["compiled"],
            **{name: given[name] for name in ("rounds", "dtype", "device", "memory", "seed")},
        )
        if figure is not None:
            check_figure(figure)

        from ..checkpoints.bench import bench as measure  # not needed to refuse a request

        with bars(shown=not given["quiet"]) as progress:
            report = measure(
                model,
                against,
                options,
                reading=LoadOptions(given["revision"]),
                on_setting=partial(progress.part, "measuring"),
            )
        if figure is not None:
            draw_bench(report, figure)
    if given["as_json"]:
        click.echo(json.dumps(report.to_dict(), indent=2))
    elif not given["quiet"]:
        show_bench(report)
