"""`collab bench`."""

from __future__ import annotations

from pathlib import Path

import click

from ..evaluation.options import BenchOptions
from ..graphs.options import RUNTIMES
from ..processes import from_main, is_main_process
from .command import command, gathers
from .options.measuring import against_option, figure_option, lengths_option, rounds_option
from .options.model import device_option, dtype_option, model_weights, seed_option
from .session import Session


@command(
    "collab bench converted --against original",
    "collab bench served --against original --runtime openvino",
    "collab bench converted --against original --batch-size 1 --length 16 --length 64 --figure speed.png",
    summary="Measure speed, memory and size, alone or beside another.",
)
@against_option
@gathers("options", BenchOptions)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=int,
    multiple=True,
    default=BenchOptions.batch_sizes,
    help="Rows of a batch; may be given several times.",
)
@lengths_option
@rounds_option(BenchOptions.rounds)
@dtype_option(BenchOptions.dtype)
@device_option()
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    show_default="torch",
    help="What runs models that are not exported: onnxruntime and openvino with a graph in float32 that is written for "
    "the measurement. Each model then runs in a process of its own. Exported folders run in their own runtime.",
)
@click.option("--compile", is_flag=True, help="Run the models through torch.compile.")
@click.option(
    "--memory/--no-memory",
    default=True,
    help="Measure peak memory; on a CPU each model is loaded once more for that, in a process of its own.",
)
@seed_option
@figure_option
@model_weights
def bench(figure: Path | None, session: Session) -> None:
    """Measure speed, memory and size of MODEL, original, converted or exported, on random inputs without padding."""
    if figure is not None and is_main_process():
        from ..figures.style import check_figure

        check_figure(figure)
    session.begin(divides=True)
    from ..checkpoints.bench import bench as bench_checkpoints
    from ..figures.plan import draw_bench
    from .bench_tables import show_bench

    report = from_main(lambda: session.call(bench_checkpoints))
    if figure is not None and is_main_process():
        draw_bench(report, figure)
    session.result(report.to_dict(), lambda: show_bench(report))
