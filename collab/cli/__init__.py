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
from .lengthen import lengthen
from .plan import plan
from .prune import prune
from .report import report


class Commands(click.Group):
    """Commands in the order of a user's work, each with its whole summary.

    Of several processes that fail, only the first says why.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that was named."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if is_first_to_fail():
                raise
            ctx.exit(error.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which the commands were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their summaries, which click would cut."""
        with formatter.section("Commands, in the order of use"):
            formatter.write_dl([(name, command.get_short_help_str()) for name, command in self.commands.items()])


EXAMPLES = """
\b
Smaller and faster, then served in int8:
  collab plan MODEL --whole --calibration sentences.txt
  collab compress MODEL half --flops 0.5 --calibration sentences.txt
  collab export half served --format openvino --precision int8 --calibration sentences.txt
  collab bench served --against MODEL --runtime openvino

\b
Collaborative attention, healed and measured:
  collab convert MODEL converted --rank 128 --calibration sentences.txt
  collab heal converted healed --data sentences.txt
  collab evaluate healed --against MODEL --data dev.tsv --task classification

\b
A classifier, and fewer heads:
  collab finetune MODEL tuned --task classification --train train.tsv --eval dev.tsv
  collab prune tuned pruned --heads 0.4 --data dev.tsv --task classification

\b
MODEL is a folder or a Hub id. collab COMMAND --help says more.
"""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="collab")
def main() -> None:
    """Make pretrained transformers smaller and faster without labels: collaborative attention, and compression."""


_COMMANDS = (
    *(plan, compress, convert, lengthen, heal, evaluate, bench),
    *(export, finetune, heads, prune, inspect, report, expand),
)
for command in _COMMANDS:
    main.add_command(command)
