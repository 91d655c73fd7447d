"""What every command does around its work: messages instead of tracebacks, logging, progress, and the time it took."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..errors import CheckpointError, CollabError, ConfigurationError, OutOfMemoryError, first_line, is_short_of_memory
from ..training.work import is_main_process
from .options import gather

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

INTERRUPTED = "Interrupted. Nothing was written."
INTERRUPTED_TRAINING = "Interrupted. The same command goes on from the last checkpoint."

_STARTING = "starting"
_LIBRARIES = 10**9


def command_age() -> float:
    """Seconds since this process was started, or 0 where the system does not tell."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


_process_start: float | None = time.perf_counter() - command_age()
"""When the process started, until a command has counted its time from there."""


class Command(click.Command):
    """A command with the options on output that all have, run with messages instead of tracebacks.

    Its function is called with the values of its options, gathered where they belong together (`options.gathers`), and
    with a `Session` by the name of ``session``.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += [
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Print the result, and nothing else, as JSON on standard output.",
            ),
            click.Option(["-v", "--verbose"], count=True, help="More output; -vv for debug output."),
            click.Option(["-q", "--quiet"], is_flag=True, help="No output but errors."),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the options; none may hold a NUL, which no shell passes and no file system takes."""
        if any("\0" in arg for arg in args):
            raise click.UsageError("An argument holds a NUL character.", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Runs the command's function."""
        assert self.callback is not None
        for param in self.params:
            _check_value(ctx, param)
        values = dict(ctx.params)
        session = Session(values.pop("as_json"), values.pop("quiet"), values.pop("verbose"), values.get("output"))
        with session.running():
            self.callback(**gather(self.callback, values), session=session)


def _check_value(ctx: click.Context, param: click.Parameter) -> None:
    """Checks what holds for every option: numbers are finite and of 64 bits, and paths have a name.

    Raises:
        click.BadParameter: if a value is not so.
    """
    value = ctx.params.get(param.name or "")
    for each in value if isinstance(value, tuple | list) else (value,):
        if isinstance(each, int | float) and not -(2**63) <= each < 2**63:  # NaN is not, either
            raise click.BadParameter(f"{each} is not a number that can be used.", ctx, param)
        if isinstance(each, Path):
            try:
                each.expanduser()
            except RuntimeError as error:
                raise click.BadParameter(f"{each}: there is no such home folder.", ctx, param) from error
        if each == Path():
            raise click.BadParameter("Give a name that is not empty, nor this folder's.", ctx, param)


class Session:
    """What a command tells its user: what it is doing, what came out, and how long it took.

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
        self._phases = _Phases()
        self._bars: _Bars | None = None
        self._signals = 0
        self._importing = False
        self._output = output
        self._output_before = _identity(output)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Shows expected failures as one message, and at the end the time that each phase took."""
        set_up_logging(self.verbosity)
        try:
            with self._signals_interrupt():
                yield
        except CollabError as error:
            if self._signals:
                raise self._interruption() from None
            kind = _WrongRequest if isinstance(error, ConfigurationError) else click.ClickException
            raise kind(_brief(str(error))) from error
        except KeyboardInterrupt:
            raise self._interruption() from None
        except Exception as error:
            if self._signals:  # of which a library that was being imported made another error
                raise self._interruption() from None
            if is_short_of_memory(error):
                raise click.ClickException(f"There is too little memory for this: {first_line(error)}") from error
            raise
        finally:
            self._stop_bars()
        self.say(self._phases.summary())

    def begin(self, model: str) -> None:
        """Says which model is being loaded, and imports the libraries, which takes seconds.

        Commands check what they were asked for before this.

        Raises:
            CheckpointError: if `model` can only be a folder and there is none.
        """
        _check_folder(model)
        self.say(f"Loading {model}")
        if not self.quiet and sys.stderr.isatty():
            self._bars = _Bars()
        self._importing = True  # until the work begins, since what commands import next is slow, too
        limit = _memory_limit()
        if limit is not None and limit < _LIBRARIES:  # some libraries end the process without a word of ours
            raise OutOfMemoryError(
                f"There is too little memory: the libraries take {_LIBRARIES / 1e9:.0f} GB of addresses, and this "
                f"process may have {limit / 1e9:.1f} GB (ulimit -v)."
            )
        try:
            import_libraries(self.verbosity)
        except Exception as error:
            if limit is None:
                raise
            # What an import raises that is short of memory is anything.
            raise OutOfMemoryError(f"There is too little memory to load the libraries: {first_line(error)}") from error

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Shows how far the work is: a bar for each phase on a terminal, and a line for each elsewhere."""
        self._importing = False
        if self._signals:  # and somebody swallowed the exception
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

    @contextlib.contextmanager
    def _signals_interrupt(self) -> Iterator[None]:
        """Makes a request to terminate an interruption, which cleans up, and counts either.

        While it cleans up, a second request changes nothing; a third ends the process at once.
        """

        def interrupt(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            if self._signals == 2 and not self._importing:
                return
            if self._importing or self._signals > 2:
                # An exception in the middle of torch's import can abort the process, and nothing is to clean up yet.
                self._stop_bars()
                click.echo(f"Error: {self.interrupted}", err=True)
                os._exit(1)
            raise KeyboardInterrupt

        def unraisable(error: Any) -> None:
            if not isinstance(error.exc_value, KeyboardInterrupt):  # in a finalizer, which cannot pass it on
                hook(error)

        numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
        # A job in the background ignores some.
        numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, interrupt) for number in numbers}
        hook, sys.unraisablehook = sys.unraisablehook, unraisable
        try:
            yield
        finally:
            sys.unraisablehook = hook
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _interruption(self) -> click.ClickException:
        """What to say after an interruption, which may have come when the output was in place already."""
        complete = self._output is not None and _identity(self._output) not in (None, self._output_before)
        return click.ClickException(f"Interrupted, but {self._output} is complete." if complete else self.interrupted)

    def _stop_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class _Phases:
    """How long each phase of a command took."""

    def __init__(self) -> None:
        global _process_start
        self._start = time.perf_counter() if _process_start is None else _process_start
        _process_start = None
        self._phase = _STARTING
        self._since = self._start
        self._completed: float | None = None
        self._seconds = {_STARTING: 0.0}

    def reach(self, phase: str, done: int, total: int | None) -> bool:
        """Notes that work has come to some place in a phase; returns whether the phase is another than before."""
        now = time.perf_counter()
        new = phase != self._phase
        if new:
            # A phase that is first heard of when a part of it is done began when the one before it was complete.
            end = self._completed if self._completed is not None and done else now
            self._seconds[self._phase] += end - self._since
            self._phase, self._since = phase, end
            self._seconds.setdefault(phase, 0.0)
        self._completed = now if done == total else None
        return new

    def summary(self) -> str:
        """The time of the whole command and of each phase."""
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._since = now
        parts = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self._seconds.items())
        return f"Took {now - self._start:.1f} s: {parts}"


class _Bars:
    """A bar for each phase on standard error. They are gone when the result is shown."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
        self._bars: Bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._bars.start()
        self._tasks: dict[str, TaskID] = {}
        self._phase = ""
        self.show(_STARTING, _STARTING, 0, None)

    def show(self, phase: str, what: str, done: int, total: int | None) -> None:
        """Moves the bar of a phase."""
        if phase != self._phase:
            if self._phase:
                self._bars.update(self._tasks[self._phase], total=1, completed=1)
                self._bars.stop_task(self._tasks[self._phase])
            if phase in self._tasks:
                self._bars.reset(self._tasks[phase])
            else:
                self._tasks[phase] = self._bars.add_task(what, total=None, count="")
            self._phase = phase
        count = "" if total is None else f"{done}/{total}"
        self._bars.update(self._tasks[phase], description=what, completed=done, total=total, count=count)

    def stop(self) -> None:
        """Clears them away."""
        self._bars.stop()


def _brief(message: str) -> str:
    """A message in which no word, such as a path of thousands of letters, takes lines."""
    return re.sub(r"(\S{200})\S{100,}(\S{80})", r"\1…\2", message)


class _WrongRequest(click.ClickException):
    """What was asked for cannot be done, whatever the files hold."""

    exit_code = 2


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
    """What tells a folder from another of the same name; None if there is none."""
    try:
        status = None if folder is None else folder.expanduser().stat()
    except (OSError, ValueError, RuntimeError):
        return None
    return None if status is None else (status.st_ino, status.st_ctime_ns)


def _memory_limit() -> int | None:
    """The bytes of addresses that this process may have (``ulimit -v``); None if there is no limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time, so that messages and bars do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(verbosity: int) -> None:
    """Shows the messages of collab, by level.

    Args:
        verbosity: -1 for errors only, 0 for warnings too, 1 for what is done, 2 for everything.
    """
    handler = _Handler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    package = logging.getLogger("collab")
    package.handlers = [handler]
    package.setLevel(_level(verbosity))
    package.propagate = False


def _level(verbosity: int) -> int:
    return {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)


def import_libraries(verbosity: int) -> None:
    """Imports torch and transformers, silencing what other libraries say that the user can do nothing about.

    What matters of it is in collab's own messages. With a verbosity above 0 nothing is silenced.
    """
    gc.disable()  # imports make a million objects that stay: looking for garbage among them takes half a second
    try:
        _import_libraries(verbosity)
    finally:
        gc.enable()
    gc.freeze()  # nor is it looked for among them later, which at the end would take another second


def _import_libraries(verbosity: int) -> None:
    if verbosity <= 0:
        # Both read these when they are imported, and set their level by them.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        os.environ.setdefault("DATASETS_VERBOSITY", "error")
    import torch  # noqa: F401

    if verbosity <= 0:
        # transformers imports torchao where it is installed, which warns of kernels for other machines, and torch of
        # what torchao calls. Not before torch is imported, which sets its own level.
        for name in ("torch", "torchao"):
            logging.getLogger(name).setLevel(logging.ERROR)
    import huggingface_hub.utils
    import transformers

    transformers.logging.set_verbosity(_level(verbosity) if verbosity > 0 else logging.ERROR)
    if verbosity <= 0:
        transformers.logging.disable_progress_bar()
        huggingface_hub.utils.disable_progress_bars()
