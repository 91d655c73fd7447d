"""Options on scores of heads."""

from __future__ import annotations

import click

from ...heads.options import RowOptions, ScoreOptions
from ..command import combined, gathers, grouped
from .data import label_column_option, max_length_option, samples_option, task_option
from .model import seed_option

head_rows_options = combined(
    task_option("none: score by how far the model's own answers move, without labels"),
    gathers(
        "rows",
        RowOptions,
        label_column_option,
        samples_option(RowOptions.samples),
        max_length_option,
        seed_option,
    ),
)
scoring_options = grouped(
    "Expert",
    click.option("--normalize", is_flag=True, help="Divide the gradient scores of each layer by their norm."),
    click.option(
        "--ablation-samples", default=ScoreOptions.ablation_samples, help="Largest number of rows for the ablation."
    ),
)
