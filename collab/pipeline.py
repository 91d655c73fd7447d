"""From a checkpoint to an exported collaborative model, in one call: what `collab convert` does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import load_checkpoint, resolve_source
from .config import ConversionConfig
from .conversion import Conversion, convert
from .errors import WeightsError
from .exporting import ExportOptions, export
from .output import check_output
from .report import ConversionReport, LayerReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """How to read a model.

    Attributes:
        revision: branch, tag or commit on the Hub.
        dtype: of the exported weights; None keeps the checkpoint's. The solve has its own (`SolverOptions.precision`).
        trust_remote_code: let transformers run a tokenizer's code that comes with the checkpoint. A model's own code is
            never run: it is read as the native model of its type.
    """

    revision: str | None = None
    dtype: torch.dtype | None = None
    trust_remote_code: bool = False


def convert_checkpoint(
    model: str,
    output: str | Path,
    config: ConversionConfig,
    *,
    load: LoadOptions | None = None,
    write: ExportOptions | None = None,
    command: str | None = None,
    on_layer: Callable[[LayerReport, int], None] | None = None,
) -> ConversionReport:
    """Converts a checkpoint into a folder that appears whole or not at all.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        config: what to do.
        load: how to read the original.
        write: how to write the result.
        command: the command line, for the report and the model card.
        on_layer: called as soon as a layer is solved, with its report and the number of layers in all.

    Returns:
        The report, as written to `collab_report.json`.

    Raises:
        CollabError: of the kind that `load_checkpoint`, `convert` and `export` raise. No output is left behind then.
    """
    load = load or LoadOptions()
    write = write or ExportOptions()
    output = Path(output).expanduser()
    source = resolve_source(model, load.revision)
    check_output(output, source.folder, write.overwrite)
    checkpoint = load_checkpoint(source, seed=config.seed)
    native = checkpoint.model
    if load.dtype is not None and torch.finfo(load.dtype).eps < torch.finfo(native.dtype).eps:
        # Before the conversion, so that the factors are not rounded to the checkpoint's dtype.
        _cast(native.state_dict(), load.dtype)
        native.to(load.dtype)  # type: ignore[arg-type]
    conversion = convert(native, config, inplace=True, on_layer=on_layer)
    if load.dtype is not None:
        _cast(conversion.model.state_dict(), load.dtype)
        conversion.model.to(load.dtype)  # type: ignore[arg-type]
        checkpoint = replace(checkpoint, unused=_cast(checkpoint.unused, load.dtype))
    origin = model if source.revision is None else f"{model} at {source.revision}"
    report = replace(conversion.report, source=origin, command=command, notes=checkpoint.notes)
    return export(Conversion(conversion.model, report), output, checkpoint, write, load.trust_remote_code)


def _cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in another dtype.

    Raises:
        WeightsError: naming the tensor, if one does not fit.
    """
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    for name, tensor in cast.items():
        if tensor.is_floating_point() and not tensor.isfinite().all() and state[name].isfinite().all():
            raise WeightsError(
                f"{name} does not fit {str(dtype).removeprefix('torch.')}: its largest entry is "
                f"{float(state[name].abs().max()):.3g}. Use bfloat16 or float32."
            )
    return cast
