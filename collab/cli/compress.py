"""`collab compress`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from ..calibration.options import CalibrationRequest
from ..compression.options import CompressionConfig
from ..errors import CollabError, ConfigurationError
from ..graphs.options import PRECISIONS, RUNTIMES, ExportOptions, GraphPrecision, Runtime
from ..io.options import LoadOptions, SaveOptions
from ..planning.budget import PARTS, STACKS, Part, Stack
from ..processes import by_itself, is_main_process
from ..training.options import AFTER_COMPRESSION, HealRequest, TrainingPrecision
from .command import Parsed, command, gathers, grouped, only_with
from .options.calibration import calibration_options, flops_option, step_bytes_option
from .options.data import Unlabelled
from .options.measuring import speed_option
from .options.model import keep_tokens_option, model_in, model_out, seed_option
from .options.training import beams_option, fragments_option, heal_options, joined_option
from .session import Session

Name = TypeVar("Name", bound=str)

_RUN = AFTER_COMPRESSION.run


def _parts(text: str) -> tuple[Part, ...]:
    """Reads names of parts with commas between them."""
    return _names(text, PARTS, "parts")


def _stacks(text: str) -> tuple[Stack, ...]:
    """Reads names of stacks with commas between them."""
    return _names(text, STACKS, "stacks")


def _names(text: str, known: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    names = text.split(",")
    named = tuple(name for name in known if name in names)
    if len(named) != len(names):
        raise ConfigurationError(f"{text!r} does not name {what} out of {', '.join(known)}.")
    return named


def _heal(
    heal: tuple[str, ...],
    unlabelled: Unlabelled,
    heal_steps: int,
    heal_precision: TrainingPrecision,
    heal_fragments: float,
    heal_joined: float,
    heal_beams: int,
    calibration: CalibrationRequest,
    seed: int,
) -> HealRequest | None:
    """Healing, by default on the data of the calibration."""
    if heal_steps == 0:
        return None
    if heal:
        source = unlabelled.sources(heal)
    else:
        source = "synthetic" if isinstance(calibration.source, str) else calibration.source
    evaluations = max(2, min(_RUN.evaluations, heal_steps // 50))
    run = replace(_RUN, steps=heal_steps, evaluations=evaluations, precision=heal_precision, seed=seed)
    length = calibration.options.max_length
    options = replace(
        AFTER_COMPRESSION,
        max_length=length,
        fragments=heal_fragments,
        joined=heal_joined,
        beams=heal_beams,
        run=run,
    )
    return HealRequest(source, options)


def _serve(runtime: Runtime, precision: GraphPrecision) -> ExportOptions | None:
    """The graph to write of the result; None for PyTorch alone."""
    if runtime == "torch":
        if precision != "float32":
            raise ConfigurationError("--precision is of a graph; name what will run it with --runtime.")
        return None
    return ExportOptions("onnx" if runtime == "onnxruntime" else "openvino", precision)


@contextlib.contextmanager
def _complete(output: Path, folder: Path, serve: ExportOptions, rows: bool) -> Iterator[None]:
    """Has an error in writing the graph of a model that was written say so."""
    line = ["collab", "export", str(output), str(folder), "--format", serve.format, "--precision", serve.precision]
    try:
        yield
    except CollabError as error:
        with_rows = " and the same --calibration" if rows else ""
        error.args = (f"{error} {output} is complete. To write its graph alone: {shlex.join(line)}{with_rows}",)
        raise


@command(
    "collab compress sentence-transformers/all-MiniLM-L6-v2 half --flops 0.5 --calibration sentences.txt",
    "collab compress ./my-classifier faster --speedup 1.8 --calibration sentences.txt --heal-steps 1000",
    "collab compress ./my-model small --speedup 4 --runtime openvino --precision int8 --calibration sentences.txt",
    "collab compress bert-base-uncased small --params 0.6 --only values,feed-forward",
    "collab compress ./translator small --step-bytes 0.5 --stacks decoder --calibration pairs.tsv "
    "--text-column en --text-column de",
    summary="Make every part of a model smaller and faster within one budget, and heal it.",
)
@gathers("config", CompressionConfig)
@flops_option()
@click.option("--params", type=float, help="The largest fraction of the whole model's parameters to keep, such as 0.6.")
@step_bytes_option()
@click.option("--speedup", type=float, help="How many times as fast to be on this processor, such as 1.8.")
@grouped(
    "Expert",
    click.option(
        "--only", type=Parsed("parts", _parts), default=",".join(PARTS), help="The parts that may become smaller."
    ),
)
@grouped(
    "Expert",
    click.option(
        "--drop-layers",
        type=int,
        show_default="as many as lose least",
        help="Number of layers to drop.",
    ),
)
@grouped(
    "Expert",
    click.option(
        "--stacks",
        type=Parsed("stacks", _stacks),
        default=",".join(STACKS),
        help="The stacks of an encoder-decoder whose layers may become smaller.",
    ),
)
@click.option("--length", default=CompressionConfig.length, help="Tokens of a row, for --flops and --speedup.")
@click.option("--rows", default=CompressionConfig.rows, help="Rows at a time, for --speedup.")
@click.option(
    "--new-tokens",
    default=CompressionConfig.new_tokens,
    help="Tokens that a model generates, for --speedup.",
)
@click.option(
    "--native",
    is_flag=True,
    help="Change only what the original's own class can hold: one width for all feed-forward layers, and fewer layers. "
    "collab expand then writes a model that needs no code.",
)
@gathers("heal", _heal)
@calibration_options("synthetic for models of text", weights_alone=False)
@keep_tokens_option
@heal_options(_RUN.steps, "the rows of --calibration")
@grouped(
    "Healing",
    only_with(
        "heal_steps",
        click.option(
            "--heal-precision",
            type=click.Choice(["auto", "float32", "bfloat16"]),
            default=_RUN.precision,
            help="Precision of the arithmetic in healing. auto: bfloat16 where the processor multiplies it faster.",
        ),
        fragments_option(AFTER_COMPRESSION.fragments, "--heal-fragments"),
        joined_option(AFTER_COMPRESSION.joined, "--heal-joined"),
        beams_option("--heal-beams"),
    ),
)
@gathers("serve", _serve)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    default="torch",
    help="What will serve the result. Besides torch, a graph for it is written to OUTPUT-RUNTIME, and --speedup is of "
    "that graph beside the original's in float32.",
)
@click.option(
    "--precision", type=click.Choice(PRECISIONS), default="float32", help="Precision of that graph; see collab export."
)
@seed_option
@model_in
@speed_option
@model_out
def compress(
    output: Path,
    heal: HealRequest | None,
    serve: ExportOptions | None,
    config: CompressionConfig,
    calibration: CalibrationRequest,
    load_options: LoadOptions,
    save_options: SaveOptions,
    session: Session,
) -> None:
    """Make every part of MODEL, a folder or a Hub id, smaller, and write the result to the folder OUTPUT.

    Give one budget: --flops, --params, --step-bytes or --speedup. Needs no labels.
    """
    session.begin(trains=heal is not None, divides=True)
    from ..checkpoints.compress import compress as compress_checkpoint
    from ..checkpoints.serving import serve as serve_checkpoint
    from ..io.staging import check_output
    from ..steps.compression import Compression
    from .outcome import finish, to_serve

    folder = output.with_name(f"{output.name}-{serve.runtime}") if serve is not None else None
    if folder is not None and is_main_process():
        check_output(folder, None, save_options.overwrite)
    compressed = session.call(compress_checkpoint)
    served = None
    if serve is not None and folder is not None and is_main_process():
        rows = calibration.source != "default"
        with _complete(output, folder, serve, rows), by_itself():  # the others have nothing to do with it
            graph = session.call(
                serve_checkpoint,
                model=str(output),
                output=folder,
                options=serve,
                original=compressed.original,
                load_options=replace(load_options, revision=None),
            )
        served = folder, graph
    following = to_serve(compressed, output, calibration.source) if served is None else None
    finish(session, compressed, Compression, following, served)
