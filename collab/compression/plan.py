"""Plans of conversions and compressions: one call for both, which differ in the parts that may change."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..evaluation.options import REPORTED_LENGTHS
from ..io.checkpoint import Checkpoint
from ..models.inputs import lengths_within
from ..models.states import in_fast_dtype
from ..planning.budget import Budget, check_fraction
from ..planning.config import ConversionConfig
from ..planning.conversions import Conversions
from ..planning.plan import Plan
from ..processes import from_main
from ..progress import Progress, no_progress
from ..steps.conversion import VocabularyCut
from .compressions import Compressions
from .options import CompressionConfig
from .timed import feasible


def plan(
    checkpoint: Checkpoint | PreTrainedModel,
    calibration: Calibration | None = None,
    config: ConversionConfig | CompressionConfig | None = None,
    *,
    fractions: Sequence[float] | None = None,
    lengths: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> Plan:
    """Predicts what several budgets would cost and lose, without changing the model.

    Several processes, which all call this, divide what a compression measures.

    Args:
        checkpoint: a native model. If `collab.keep_tokens` made it, a compression's fractions are of the model before.
        calibration: result of `collab.calibrate` for it; None to predict errors of the weights of a conversion.
        config: what is planned: a conversion, which changes queries and keys only, or a compression of every part. Its
            budget says in what unit `fractions` are. None for a conversion to any form by parameters, with the same
            fraction in every layer.
        fractions: the budgets; None for 1/2, 1/3 and 1/6 of the query/key parameters, or for 0.75, 0.5, 0.33 and 0.25
            of what a compression limits.
        lengths: sequence lengths, in tokens, to count the arithmetic of conversions for; None for 32, 128 and 512, or
            what the model accepts where that is less. That of compressions is for `CompressionConfig.length`.
        progress: called after the prediction of every layer, or while the model runs.

    Returns:
        An option for every form and every budget that can be met.

    Raises:
        BudgetError: if none of the budgets can be met.
        ConfigurationError: if one of them is not above 0 and at most 1.
        CollabError: as `collab.convert` or `collab.compress`.
    """
    checkpoint = Checkpoint.of(checkpoint)
    model = checkpoint.model
    config = config or ConversionConfig(params=1 / 2, form="auto", allocation="uniform")
    unit = config.budget.unit
    budgets = [Budget(unit, value) for value in fractions or config.FRACTIONS]
    for budget in budgets if unit != "rank" else ():  # ranks, which may be whole numbers, are checked against the model
        check_fraction("Each of fractions", budget.value)
    if isinstance(config, CompressionConfig):
        with in_fast_dtype(model):
            cut = checkpoint.step(VocabularyCut)
            return Compressions(model, feasible(config, model), calibration, progress, cut).plan(budgets)
    lengths = lengths or lengths_within(model, REPORTED_LENGTHS)
    return from_main(lambda: Conversions(model, config, calibration, lengths, progress).plan(budgets))
