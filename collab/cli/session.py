"""The frame around the work of every command: messages instead of tracebacks, progress, result, time."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..errors import CheckpointError, CollabError, ConfigurationError, first_line, is_short_of_memory
from ..processes import is_main_process
from .interrupts import Interrupts
from .libraries import import_libraries, set_up_logging
from .progress import Bars, Phases

INTERRUPTED = "Interrupted. Nothing was written."
INTERRUPTED_TRAINING = "Interrupted. The same command goes on from the last checkpoint."


class Session:
    """The messages of a command to its user: progress, the result, and how long it took.

    Progress and times go to standard error, results to standard output. Of several processes that train together, only
    the first says anything.

    Attributes:
        as_json: print the result as JSON.
        quiet: say nothing but errors.
        verbosity: -1 for errors only, 0 for warnings, 1 and 2 for more.
        interrupted: what to say after an interruption.
    """

    def __init__(self, as_json: bool, quiet: bool, verbose: int, output: Path | None = None) -> None:
        self.as_json = as_json
        self.quiet = quiet or not is_main_process()
        self.verbosity = -1 if quiet else verbose
        self.interrupted = INTERRUPTED
        self._phases = Phases()
        self._bars: Bars | None = None
        self._interrupts = Interrupts(self._last_words)
        self._output = output
        self._output_before = _identity(output)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Shows expected failures as one message, and at the end the time that each phase took."""
        set_up_logging(self.verbosity)
        try:
            with self._interrupts.handled():
                yield
        except (Exception, KeyboardInterrupt) as error:
            message = self._message(error)
            if message is None:
                raise
            raise message from error
        finally:
            self._stop_bars()
        self.say(self._phases.summary())

    def begin(self, model: str) -> None:
        """Says which model is being loaded, and imports the libraries, which takes seconds.

        Commands check what they were asked for before this.

        Raises:
            CheckpointError: if `model` can only be a folder and there is none.
            OutOfMemoryError: if the process may not have the memory that the libraries take.
        """
        _check_folder(model)
        self.say(f"Loading {model}")
        if not self.quiet and sys.stderr.isatty():
            self._bars = Bars()
        self._interrupts.importing = True  # until the work begins, since what commands import next is slow, too
        import_libraries(self.verbosity)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Shows how far the work is: a bar for each phase on a terminal, and a line for each elsewhere."""
        self._interrupts.importing = False
        if self._interrupts.count:  # and somebody swallowed the exception
            raise KeyboardInterrupt
        # What a training measured last comes after its name.
        phase = "training" if what.startswith("training") else what
        new = self._phases.reach(phase, done, total)
        if self._bars is not None:
            self._bars.show(phase, what, done, total)
        elif new and phase != "loading the model":  # which was said at the beginning
            self.say(phase[0].upper() + phase[1:])

    def result(self, record: dict[str, Any], show: Callable[[], None]) -> None:
        """Prints what came out: as JSON, or by `show`."""
        self._stop_bars()
        if not is_main_process():
            return
        if self.as_json:
            click.echo(json.dumps(record, indent=2))
        elif not self.quiet:
            show()

    def say(self, text: str) -> None:
        """Prints a line on standard error, unless nothing is to be said."""
        if not self.quiet:
            click.echo(text, err=True)

    def _message(self, error: BaseException) -> click.ClickException | None:
        """The message for an interruption or an expected failure; None for anything else."""
        # A library that was being imported makes another error of an interruption.
        if isinstance(error, KeyboardInterrupt) or self._interrupts.count:
            complete = _identity(self._output) not in (None, self._output_before)
            return click.ClickException(
                f"Interrupted, but {self._output} is complete." if complete else self.interrupted
            )
        if isinstance(error, ConfigurationError):
            return _WrongRequest(_brief(str(error)))
        if isinstance(error, CollabError):
            return click.ClickException(_brief(str(error)))
        if is_short_of_memory(error):
            return click.ClickException(f"There is too little memory for this: {first_line(error)}")
        return None

    def _last_words(self) -> None:
        self._stop_bars()
        click.echo(f"Error: {self.interrupted}", err=True)

    def _stop_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class _WrongRequest(click.ClickException):
    """A request that cannot be met, whatever the files hold."""

    exit_code = 2


def _brief(message: str) -> str:
    """A message in which no word, such as a path of thousands of letters, takes lines."""
    return re.sub(r"(\S{200})\S{100,}(\S{80})", r"\1…\2", message)


def _check_folder(model: str) -> None:
    """Checks, before anything slow, that there is a folder where the name cannot be one on the Hub."""
    try:
        folder = Path(model).expanduser()
        missing = not folder.is_dir()
    except (OSError, RuntimeError, ValueError):  # a name that the file system does not take, or nobody's home
        folder, missing = Path(), True
    if missing and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise CheckpointError(
            f"{model} is a file. Give the folder that holds config.json and the weights."
            if folder.is_file()
            else f"There is no folder {model}."
        )


def _identity(folder: Path | None) -> tuple[int, int] | None:
    """An identity that tells a folder from another of the same name; None if there is none."""
    try:
        status = None if folder is None else folder.expanduser().stat()
    except (OSError, ValueError, RuntimeError):
        return None
    return None if status is None else (status.st_ino, status.st_ctime_ns)
