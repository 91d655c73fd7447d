"""What every command does around its work: messages instead of tracebacks, logging, progress."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import click
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import CollabError, ConfigurationError
from ..io.report import LayerReport

INTERRUPTED_TRAINING = "Interrupted. The same command goes on from the last checkpoint."


def command_line() -> str:
    """What was typed, for reports and cards."""
    return f"collab {shlex.join(sys.argv[1:])}"


class _WrongRequest(click.ClickException):
    """What was asked for cannot be done, whatever the files hold."""

    exit_code = 2


@contextlib.contextmanager
def failures(interrupted: str = "Interrupted. Nothing was written.") -> Iterator[None]:
    """Shows expected failures as one message, and turns a termination request into an interruption that cleans up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except CollabError as error:
        raise (_WrongRequest if isinstance(error, ConfigurationError) else click.ClickException)(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException(interrupted) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def set_up_logging(verbosity: int) -> None:
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


class Bars:
    """A bar on standard error for calibration, then layers, then steps of training."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("reading the model", total=None)

    def batch(self, done: int, total: int | None) -> None:
        """Moves on after a batch of the calibration."""
        self._progress.update(self._task, description="calibrating", completed=done, total=total)
        if done == total:
            self._progress.reset(self._task, total=None, description="choosing ranks")

    def layer(self, layer: LayerReport | str, total: int) -> None:
        """Moves on after a layer."""
        text = layer if isinstance(layer, str) else f"{layer.name}: error {layer.error:.4f}"
        self._progress.update(self._task, description=text, advance=1, total=total)

    def part(self, what: str, done: int, total: int) -> None:
        """Moves on within a part of the work."""
        self._progress.update(self._task, description=what, completed=done, total=total)

    def step(self, done: int, total: int, measured: dict[str, float]) -> None:
        """Moves on after a step of training."""
        shown = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
        self._progress.update(self._task, description=f"training {shown}", completed=done, total=total)


@contextlib.contextmanager
def bars(shown: bool) -> Iterator[Bars]:
    """Progress for a command, if somebody is looking."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal), transient=True) as progress:
        yield Bars(progress)
