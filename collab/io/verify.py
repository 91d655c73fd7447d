"""Checks that a written folder reloads to the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import VerificationError
from ..models.inputs import probe_inputs
from ..models.states import evaluating

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def verify(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """Reloads a folder and compares every weight, and outputs on random inputs, with the model in memory.

    Args:
        folder: the written folder.
        model: the model that was written.

    Returns:
        Whether the weights are equal, the largest output difference and its tolerance, for the report.

    Raises:
        VerificationError: if anything differs.
    """
    loaded: Any = type(model).from_pretrained(
        folder, dtype=model.dtype, local_files_only=True, output_loading_info=True
    )
    reloaded, info = loaded
    if info["missing_keys"]:
        raise VerificationError(f"The written model lacks {', '.join(sorted(info['missing_keys']))}.")
    written, read = model.state_dict(), reloaded.state_dict()
    for name, tensor in written.items():
        if not torch.equal(tensor.cpu(), read[name].cpu()):
            raise VerificationError(f"{name} does not reload as it was written.")

    reloaded.to(model.device)
    inputs = probe_inputs(model)
    with evaluating(model), torch.no_grad():
        expected, actual = model(**inputs), reloaded(**inputs)
    tolerance = _TOLERANCE.get(model.dtype, 1e-5)
    largest = 0.0
    for name, value in expected.items():
        if isinstance(value, Tensor):
            difference = float((value - actual[name]).abs().max())
            largest = max(largest, difference)
            if not difference <= tolerance * max(1.0, float(value.abs().max())):
                raise VerificationError(f"{name} of the reloaded model differs by {difference:.2e} on random inputs.")
    return {"weights_equal": True, "largest_output_difference": largest, "tolerance": tolerance}
