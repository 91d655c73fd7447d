"""Checks that a written folder reloads to the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import VerificationError
from ..modeling.collab_model import optional_parts
from ..models.inputs import probe_inputs
from ..models.states import evaluating
from .failures import reading
from .read import check_weight_files, tensor_names

# Entries that are compared at a time.
_PIECE = 2**22
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
    with reading(str(folder)):
        reloaded = _reload(folder, model)
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


def _reload(folder: Path, model: PreTrainedModel) -> Any:
    """The model that a written folder describes; every weight in its files is compared with that in memory.

    What is equal is not held twice: the new model takes the tensors that are in memory, so this needs none of its own.

    Raises:
        VerificationError: if a weight differs or is missing.
    """
    written, kind = model.state_dict(), type(model)
    parts: dict[str, Any] = optional_parts(model)
    files = {name: file for file in check_weight_files(folder) for name in tensor_names(file)}
    for name in written.keys() & files.keys():
        if not _is_stored(files[name], name, written[name]):
            raise VerificationError(f"{name} does not reload as it was written.")
    state = {name: tensor for name, tensor in written.items() if name in files}
    stored = {tensor.data_ptr() for tensor in state.values()}
    if all(name in files or tensor.data_ptr() in stored for name, tensor in written.items()):  # or it is tied
        config = kind.config_class.from_pretrained(folder)  # type: ignore[union-attr]
        loaded: Any = kind.from_pretrained(
            None, config=config, state_dict=state, dtype=model.dtype, output_loading_info=True, **parts
        )
    else:  # transformers renames weights of some old checkpoints when it writes and reads them
        loaded = kind.from_pretrained(
            folder, dtype=model.dtype, local_files_only=True, output_loading_info=True, **parts
        )
    reloaded, info = loaded
    if info["missing_keys"]:
        raise VerificationError(f"The written model lacks {', '.join(sorted(info['missing_keys']))}.")
    read = reloaded.state_dict()
    for name, tensor in written.items():
        if read[name].data_ptr() != tensor.data_ptr() and not torch.equal(tensor.cpu(), read[name].cpu()):
            raise VerificationError(f"{name} does not reload as it was written.")
    return reloaded


def _is_stored(file: Path, name: str, tensor: Tensor) -> bool:
    """Whether a file holds a tensor, bit by bit; it is opened anew for each piece, so that the rest leaves memory."""
    with safe_open(file, framework="pt") as opened:
        entry = opened.get_slice(name)
        if tuple(entry.get_shape()) != tuple(tensor.shape):
            return False
        if not tensor.ndim:
            return torch.equal(opened.get_tensor(name), tensor.cpu())
    step = max(1, _PIECE * len(tensor) // max(1, tensor.numel()))
    for start in range(0, len(tensor), step):
        with safe_open(file, framework="pt") as opened:
            piece = opened.get_slice(name)[start : start + step]
            here = tensor[start : start + step].cpu()
            if piece.dtype != here.dtype or not torch.equal(piece, here):
                return False
    return True
