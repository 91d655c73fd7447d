"""A command: its function is called with the values of its options, gathered where they belong together."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
from click.core import ParameterSource

from ..errors import ConfigurationError
from .session import Session, Values

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


def combined(*options: Decorator) -> Decorator:
    """Several decorators as one."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


Group = Literal["Options", "Long rows", "Data", "Healing", "Training", "Pruning", "Output", "Expert"]
"""Sections of a command's help, in their order; options are in the first if nothing else is said."""


def grouped(group: Group, *options: Decorator) -> Decorator:
    """Several decorators as one, whose options stand in a section of the help; those of a section keep their own."""
    return _marked("group", group, *options)


def only_with(owners: str | tuple[str, ...], *options: Decorator, at: object = None) -> Decorator:
    """Several decorators as one, whose options say something about another option and are refused without it.

    Args:
        owners: parameter that the other option sets, or several, one of which is enough; a command may lack some.
        options: the decorators.
        at: the value that the other option must have; None for any.
    """
    marked = _marked("at", at, *options)
    return _marked("owners", (owners,) if isinstance(owners, str) else owners, marked)


def switched_off_by(value: object, *options: Decorator) -> Decorator:
    """Several decorators as one, whose options are as good as not given for others `only_with` them at this value."""
    return _marked("off", value, *options)


def once(*options: Decorator) -> Decorator:
    """Several decorators as one, whose options may be given once.

    They name rows, and options of other commands that do may be given several times.
    """
    return _marked("once", True, *options)


def _marked(attribute: str, value: object, *options: Decorator) -> Decorator:
    """Several decorators as one, whose options get an attribute if they have none."""

    def decorate(function: Function) -> Function:
        before = len(getattr(function, "__click_params__", ()))
        function = combined(*options)(function)
        for param in vars(function).get("__click_params__", ())[before:]:
            vars(param).setdefault(attribute, value)
        return function

    return decorate


def gathers(name: str, build: Callable[..., object], *options: Decorator) -> Decorator:
    """Options that belong together, as a decorator of a command's function.

    The function gets one argument for all of them, called `name`: what `build` returns. `build`, often a dataclass, is
    called with those of the command's values that its parameters are named after: values of options, what was gathered
    by decorators below, and ``command``, the command line.
    """

    def decorate(function: Function) -> Function:
        function = combined(*options)(function)
        vars(function).setdefault("gathered", {})[name] = build
        return function

    return decorate


def command_line() -> str:
    """The command as it was typed, for reports and cards."""
    return f"collab {shlex.join(sys.argv[1:])}"


class Parsed(click.ParamType):
    """Values that a function reads from text; its ConfigurationError is an error of usage."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads a value that is still text."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def command(*examples: str, summary: str) -> Callable[[Callable[..., Any]], Command]:
    """Makes a function a `Command`, with examples below its help, and a summary for that of ``collab``."""
    epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)])
    return click.command(cls=Command, short_help=summary, epilog=epilog)


class Command(click.Command):
    """A command with the options on output that all have, run with messages instead of tracebacks.

    Its function is called with the values of its options, gathered where they belong together (`gathers`), and with a
    `Session` by the name of ``session``. It takes those that it decides anything by; `Session.call` passes them on.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.context_settings["show_default"] = True
        self.params += [
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Print the result, and nothing else, as JSON on standard output.",
            ),
            click.Option(
                ["-v", "--verbose"], count=True, show_default=False, help="More output; -vv for debug output."
            ),
            click.Option(["-q", "--quiet"], is_flag=True, help="No output but errors."),
        ]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options in the sections of `Group`."""
        sections: dict[str, list[tuple[str, str]]] = {group: [] for group in get_args(Group)}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections["Output" if param.name in _OUTPUT else getattr(param, "group", "Options")].append(record)
        for group, records in sections.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the options.

        None may hold a NUL, which no shell passes and no file system takes, or what is not UTF-8, which no report can
        hold. Of most that are given twice, the last value counts.
        """
        for arg in args:
            if not arg.isascii() and arg.encode(errors="ignore").decode() != arg:
                raise click.UsageError(f"An argument is not UTF-8: {arg.encode(errors='replace').decode()}.", ctx)
        if any("\0" in arg for arg in args):
            raise click.UsageError("An argument holds a NUL character.", ctx)
        rest = super().parse_args(ctx, [*args])  # first, because it also answers --help
        _, _, order = self.make_parser(ctx).parse_args([*args])
        for param in order:
            if getattr(param, "once", False) and order.count(param) > 1 and not ctx.resilient_parsing:
                raise click.UsageError(f"{param.opts[-1]} is given twice, but takes one source here.", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> None:
        """Runs the command's function."""
        assert self.callback is not None
        for param in self.params:
            _check_value(ctx, param)
            _check_owners(ctx, param)
        values = Values(ctx.params)
        session = Session(values)
        with session.running():
            values["command"] = command_line()
            for name, build in vars(self.callback).get("gathered", {}).items():
                values[name] = build(**values.named_in(build))
            self.callback(**values.named_in(self.callback), session=session)


_OUTPUT = ("as_json", "verbose", "quiet", "help")
"""Options that every command has."""


def _check_owners(ctx: click.Context, param: click.Parameter) -> None:
    """Checks that an option that was given is not `only_with` others that were not.

    Raises:
        click.UsageError: if it is.
    """
    owners: tuple[str, ...] = getattr(param, "owners", ())
    at = getattr(param, "at", None)
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    others = [each for each in ctx.command.params if each.name in owners]
    values = {each.opts[-1]: ctx.params[each.name] for each in others}
    off = {each.opts[-1]: getattr(each, "off", 0) for each in others}
    counts = any(value == at if at else value and value != off[option] for option, value in values.items())
    if not owners or not given or counts:
        return
    said = {  # values that look like one that was given
        option: value
        for option, value in values.items()
        if (value and isinstance(value, str)) or (value == off[option] and value is not False)
    }
    why = "".join(f", and {option} is {value}" for option, value in said.items())
    wanted = " or ".join(f"{option} {at}" if at else option for option in values)
    raise click.UsageError(f"{param.opts[-1]} counts only with {wanted}{why}.", ctx)


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
        if isinstance(each, Path) and not each.name:
            raise click.BadParameter("Give a name that is not empty, nor that of this or the root folder.", ctx, param)
