"""The frame around the work of every command: messages instead of tracebacks, progress, result, time."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import __version__
from ..data.source import is_path
from ..errors import (
    CheckpointError,
    CollabError,
    ConfigurationError,
    ProcessError,
    first_line,
    is_short_of_memory,
)
from ..graphs.options import GRAPH_FILES
from ..io.options import TransformOptions
from ..io.unfinished import unfinished_work
from ..processes import (
    LOST,
    check_launcher,
    check_same,
    connect,
    disconnect,
    has_lost_another,
    is_main_process,
    processes,
)
from .interrupts import Interrupts
from .libraries import import_libraries, set_up_logging
from .progress import Bars, Phases

Result = TypeVar("Result")
INTERRUPTED = "Interrupted. Nothing was written."


class Values(dict[str, Any]):
    """The values of a command's options, with what was gathered from them, each by the name of a parameter."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._read: set[str] = set()

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._read.discard(name)

    def named_in(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The values that a function's parameters are named after."""
        parameters = inspect.signature(function).parameters
        names = {*parameters}
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            names |= {*TransformOptions.__annotations__}
        self._read |= names
        return {name: self[name] for name in names & self.keys()}

    def unread(self) -> set[str]:
        """Names of the values that no function was asked for by `named_in`."""
        return self.keys() - self._read


class Session:
    """The messages of a command to its user: progress, the result, and how long it took.

    Progress and times go to standard error, results to standard output. Of several processes that work together, only
    the main one says anything, but a failure, which the first to fail does.

    Args:
        values: the values of the command's options.

    Attributes:
        as_json: print the result as JSON.
        quiet: say nothing but errors.
        verbosity: -1 for errors only, 0 for warnings, 1 and 2 for more.
        interrupted: what to say after an interruption; None for what the same command would do next.
        output: folder to write; None if the command writes none.
    """

    def __init__(self, values: Values) -> None:
        self.as_json: bool = values.pop("as_json")
        quiet, verbose = values.pop("quiet"), values.pop("verbose")
        self.quiet = quiet or not is_main_process()
        self.verbosity = -1 if self.quiet else verbose
        self.interrupted: str | None = None
        self._trains = False
        self._phases = Phases()
        self._bars: Bars | None = None
        self._interrupts = Interrupts(self._last_words)
        self._values = values
        self.output: Path | None = values.get("output")
        self._output_before = _identity(self.output)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Shows expected failures as one message, and at the end the time that each phase took."""
        set_up_logging(self.verbosity)
        try:
            with self._interrupts.handled():
                yield
                disconnect()
        except (Exception, KeyboardInterrupt) as error:
            message = self._message(error)
            if message is None:
                raise
            raise message from error
        finally:
            self._stop_bars()
        self.say(self._phases.summary())

    def begin(self, *, trains: bool = False, divides: bool = False) -> None:
        """Says which model is being loaded, and imports the libraries, which takes seconds.

        Commands check what they were asked for before this.

        Args:
            trains: whether the command trains, so that it goes on where it was interrupted.
            divides: whether several processes can divide the work.

        Raises:
            ConfigurationError: if there are several processes, which differ or cannot divide the work.
            ProcessError: if they cannot reach each other.
            CheckpointError: if the model can only be a folder and there is none.
            OutOfMemoryError: if the process may not have the memory that the libraries take.
        """
        self._trains = trains
        check_launcher()
        if processes() > 1 and not divides:
            name = click.get_current_context().info_name
            raise ConfigurationError(
                f"collab {name} runs in one process, but {processes()} were started. Start it without torchrun or "
                "accelerate launch."
            )
        model = self._values["model"]
        _check_folder(model)
        self.say(f"Loading {model}")
        if not self.quiet and sys.stderr.isatty():
            self._bars = Bars()
        self._interrupts.importing = True  # until the work begins, since what commands import next is slow, too
        import_libraries(self.verbosity)
        if processes() > 1:
            self._meet()

    def _meet(self) -> None:
        """Connects the processes, which must have been started alike."""
        import torch
        import transformers

        connect()
        check_same(
            {
                "their arguments": " ".join(sys.argv[1:]),
                "the version of collab": __version__,
                "the version of torch": torch.__version__,
                "the version of transformers": transformers.__version__,
            }
        )

    def call(self, verb: Callable[..., Result], **more: Any) -> Result:
        """Calls the verb of the command with the values that its parameters are named after, and with other arguments.

        Raises:
            TypeError: if neither this verb nor anything before it takes one of the command's options.
        """
        self._values["progress"] = self.progress
        named = self._values.named_in(verb) | more
        ignored = self._values.unread() - named.keys() - {"command", "progress"}
        if ignored:
            raise TypeError(f"No function takes {', '.join(sorted(ignored))}.")
        return verb(**named)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Shows how far the work is: a bar for each phase on a terminal, and a line for each elsewhere."""
        self._interrupts.importing = False
        if self._interrupts.count:  # and somebody swallowed the exception
            raise KeyboardInterrupt
        phase = what.partition("; ")[0]  # what a training measured last, or bytes that are done, come after its name
        new = self._phases.reach(phase, done, total)
        if self._bars is not None:
            self._bars.show(phase, what, done, total)
        elif new and phase != "loading the model":  # which was said at the beginning
            self.say(what[0].upper() + what[1:])

    def result(self, record: dict[str, Any], show: Callable[[], None]) -> None:
        """Prints what came out: as JSON, or by `show`."""
        self._stop_bars()
        if not is_main_process():
            return
        if self.as_json:
            click.echo(json.dumps(_finite(record), indent=2, allow_nan=False))
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
            complete = _identity(self.output) not in (None, self._output_before)
            return click.ClickException(
                f"Interrupted, but {self.output} is complete." if complete else self._interruption()
            )
        if isinstance(error, ConfigurationError):
            return _WrongRequest(_brief(str(error)))
        if isinstance(error, CollabError):
            message = _brief(str(error))
            return click.ClickException(self._with_resumption(message) if isinstance(error, ProcessError) else message)
        if has_lost_another(error):
            return click.ClickException(self._with_resumption(LOST))
        if is_short_of_memory(error):
            return click.ClickException(f"There is too little memory for this: {first_line(error)}")
        return None

    def _with_resumption(self, message: str) -> str:
        """A message about the loss of another process, with what the same command does next."""
        return f"{message} {self._next_time()}"

    def _interruption(self) -> str:
        """What to say after an interruption."""
        if self.interrupted is not None or not self._trains:
            return self.interrupted or INTERRUPTED
        return f"Interrupted. {self._next_time()}"

    def _next_time(self) -> str:
        """What the same command will do."""
        if not self._trains or self.output is None:
            return "The same command begins anew."
        restarts = getattr(self._values.get("save_options"), "restart", False)
        command = f"The same command{' without --restart' * restarts}"
        try:
            work = unfinished_work(self.output.expanduser())
        except (OSError, ValueError, RuntimeError):  # as `_identity`
            work = "nothing"
        if work == "nothing":
            return "No checkpoint was written yet. The same command begins anew."
        if work == "a beginning":
            return f"No checkpoint was written yet. {command} trains from the start, with the widths that were chosen."
        return f"{command} goes on from the last checkpoint."

    def _last_words(self) -> None:
        self._stop_bars()
        if is_main_process():
            click.echo(f"Error: {self._interruption()}", err=True)

    def _stop_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _finite(value: Any) -> Any:
    """A value with None for every number that JSON lacks: NaN and the infinities."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        missing = not folder.is_dir() and not (folder.name in GRAPH_FILES and folder.is_file())
    except (OSError, RuntimeError, ValueError):  # a name that the file system does not take, or nobody's home
        folder, missing = Path(), True
    if missing and is_path(model):
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
