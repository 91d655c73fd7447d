"""collab converts pretrained transformers to collaborative attention.

Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362).

Notation, the same in every docstring and shape comment:

====  =====================================================================================
B     batch
T, S  query tokens, key tokens
D     hidden size; D_q and D_k where query and key inputs differ in width
H     heads
d     head dimension of the original layer
K     H·d, query/key dimensions of the original layer
R     rank: the number of query/key dimensions that the heads share
x, y  query-side and key-side hidden state (row vectors)
W_Q, W_K  original projections, D×K; head h owns the columns W_Q^h, W_K^h
A_h   W_Q^h W_K^hᵀ ∈ R^{D×D}, what head h compares
𝒯     the D×H×D tensor with 𝒯[:, h, :] = A_h
W̃_Q, W̃_K  shared projections, D×R
M     mixing matrix, H×R; m_h its row for head h
G_h   what stands between the shared projections: Â_h = W̃_Q G_h W̃_Kᵀ
c_h   content bias W_K^h b_Q^h ∈ R^D
====  =====================================================================================

Importing collab registers the converted models with transformers, so that ``AutoModel.from_pretrained(folder)`` and the
other Auto classes load them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .calibration import calibrate
from .calibration.calibrate import Calibration, CalibrationOptions
from .checkpoints.convert import CalibrationRequest, HealRequest, convert_checkpoint
from .conversion.convert import Conversion, convert
from .conversion.in_order import calibrate_in_order
from .data.source import DataSource
from .decomposition import SolverOptions
from .errors import (
    AlreadyConvertedError,
    BudgetError,
    CalibrationError,
    CheckpointError,
    CollabError,
    ConfigurationError,
    DataError,
    DeviceError,
    ExtraError,
    NotConvertedError,
    OutOfMemoryError,
    OutputError,
    RankError,
    ShapeError,
    TrainingError,
    UnsupportedArchitectureError,
    VerificationError,
    WeightsError,
)
from .io.load import LoadOptions
from .io.report import ConversionReport, Count, LayerReport
from .io.write import ExportOptions, export
from .models.families import register
from .planning.config import ConversionConfig
from .planning.plan import Plan, make_plan
from .reparametrization.layer import Reparametrization, reparametrize
from .reparametrization.model import score_errors
from .reparametrization.moments import LayerMoments
from .training.options import FinetuneOptions, HealOptions, RunOptions
from .training.work import WorkOptions

if TYPE_CHECKING:
    from .checkpoints.bench import bench
    from .checkpoints.evaluate import EvaluateOptions, evaluate
    from .checkpoints.expand import expand_checkpoint
    from .checkpoints.export_onnx import OnnxOptions, export_onnx
    from .checkpoints.finetune import finetune_checkpoint
    from .checkpoints.heads import score_checkpoint
    from .checkpoints.heal import heal_checkpoint
    from .checkpoints.inspect import inspect_checkpoint
    from .checkpoints.prune import prune_checkpoint
    from .conversion.expand import Expansion, expand
    from .evaluation.bench import BenchOptions, bench_models
    from .evaluation.bench_report import BenchReport
    from .heads.inspection import inspect_model
    from .heads.removal import prune
    from .heads.scores import ScoreOptions, score_heads
    from .heads.selection import PruneOptions
    from .training.finetune import finetune
    from .training.heal import heal

__all__ = [
    "AlreadyConvertedError",
    "BenchOptions",
    "BenchReport",
    "BudgetError",
    "Calibration",
    "CalibrationError",
    "CalibrationOptions",
    "CalibrationRequest",
    "CheckpointError",
    "CollabError",
    "ConfigurationError",
    "Conversion",
    "ConversionConfig",
    "ConversionReport",
    "Count",
    "DataError",
    "DataSource",
    "DeviceError",
    "EvaluateOptions",
    "Expansion",
    "ExportOptions",
    "ExtraError",
    "FinetuneOptions",
    "HealOptions",
    "HealRequest",
    "LayerMoments",
    "LayerReport",
    "LoadOptions",
    "NotConvertedError",
    "OnnxOptions",
    "OutOfMemoryError",
    "OutputError",
    "Plan",
    "PruneOptions",
    "RankError",
    "Reparametrization",
    "RunOptions",
    "ScoreOptions",
    "ShapeError",
    "SolverOptions",
    "TrainingError",
    "UnsupportedArchitectureError",
    "VerificationError",
    "WeightsError",
    "WorkOptions",
    "bench",
    "bench_models",
    "calibrate",
    "calibrate_in_order",
    "convert",
    "convert_checkpoint",
    "evaluate",
    "expand",
    "expand_checkpoint",
    "export",
    "export_onnx",
    "finetune",
    "finetune_checkpoint",
    "heal",
    "heal_checkpoint",
    "inspect_checkpoint",
    "inspect_model",
    "make_plan",
    "prune",
    "prune_checkpoint",
    "reparametrize",
    "score_checkpoint",
    "score_errors",
    "score_heads",
]

_LATER = {
    "BenchOptions": ".evaluation.bench_options",
    "BenchReport": ".evaluation.bench_report",
    "EvaluateOptions": ".checkpoints.evaluate",
    "Expansion": ".conversion.expand",
    "OnnxOptions": ".checkpoints.export_onnx",
    "PruneOptions": ".heads.selection",
    "ScoreOptions": ".heads.scores",
    "bench": ".checkpoints.bench",
    "bench_models": ".evaluation.bench",
    "evaluate": ".checkpoints.evaluate",
    "expand": ".conversion.expand",
    "expand_checkpoint": ".checkpoints.expand",
    "export_onnx": ".checkpoints.export_onnx",
    "finetune": ".training.finetune",
    "finetune_checkpoint": ".checkpoints.finetune",
    "heal": ".training.heal",
    "heal_checkpoint": ".checkpoints.heal",
    "inspect_checkpoint": ".checkpoints.inspect",
    "inspect_model": ".heads.inspection",
    "prune": ".heads.removal",
    "prune_checkpoint": ".checkpoints.prune",
    "score_checkpoint": ".checkpoints.heads",
    "score_heads": ".heads.scores",
}
"""What is slow to import, or needs an extra: where it is."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
