"""The command line: parse, call one public function, show what it returned.

Nothing at the top of these files imports torch or transformers, which takes seconds: help and usage errors answer
without them. `session.Session.begin` imports them, once a command knows that what it was asked for makes sense.
"""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from ..processes import is_first_to_fail
from .bench import bench
from .compress import compress
from .convert import convert
from .evaluate import evaluate
from .expand import expand
from .export import export
from .finetune import finetune
from .heads import heads
from .heal import heal
from .inspect import inspect
from .plan import plan
from .prune import prune


class _Commands(click.Group):
    """The commands. Of several processes that fail, only the first says why."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that was named."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if is_first_to_fail():
                raise
            ctx.exit(error.exit_code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  collab convert sentence-transformers/all-MiniLM-L6-v2 smaller --rank 128",
)
@click.version_option(__version__, prog_name="collab")
def main() -> None:
    """Make pretrained transformers smaller and faster without labels: collaborative attention, and compression."""


for command in (convert, compress, plan, heal, finetune, evaluate, inspect, heads, prune, expand, bench, export):
    main.add_command(command)
