"""The command line: parse, call one public function, show what it returned."""

from __future__ import annotations

from importlib.metadata import version

import click

from .bench import bench
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


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  collab convert sentence-transformers/all-MiniLM-L6-v2 smaller --rank 128",
)
@click.version_option(version("collab"), prog_name="collab")
def main() -> None:
    """Convert pretrained transformers to collaborative attention: query and key projections shared by all heads."""


main.add_command(convert)
main.add_command(plan)
main.add_command(heal)
main.add_command(finetune)
main.add_command(evaluate)
main.add_command(inspect)
main.add_command(heads)
main.add_command(prune)
main.add_command(expand)
main.add_command(bench)
main.add_command(export)
