"""A cache file of moments, with a fingerprint of model, data and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..errors import CalibrationError, OutputError
from ..io.staging import atomic_write
from ..models.weights import bytes_of, digest_of
from ..reparametrization.moments import LayerMoments

_FORMAT = "collab calibration 5"
_NAMES = {"model": "another model", "data": "other data or another max_length", "settings": "another seed or version"}


def fingerprint(model: PreTrainedModel, batches: Iterable[Batch], seed: int) -> dict[str, str]:
    """Hashes of what moments depend on: the model, the data as the model sees it, and the settings."""
    data = hashlib.sha256()
    for batch in batches:
        for name, tensor in sorted(batch.items()):
            data.update(f"{name}{tuple(tensor.shape)}".encode())
            data.update(bytes_of(tensor))
    return {"model": digest_of(model), "data": data.hexdigest(), "settings": f"{_FORMAT}, seed {seed}"}


def write(
    file: Path, key: dict[str, str], moments: dict[str, LayerMoments], held_out: dict[str, LayerMoments] | None
) -> None:
    """Writes moments to a file, completely or not at all.

    Raises:
        OutputError: if the file cannot be written.
    """
    tensors = {
        f"{part}/{layer}/{name}": tensor.contiguous().cpu()
        for part, layers in (("moments", moments), ("held_out", held_out or {}))
        for layer, values in layers.items()
        for name, tensor in values.tensors().items()
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as partial:
            save_file(tensors, partial, metadata=key)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"The moments could not be written to {file}: {error}.") from error


def read(file: Path, key: dict[str, str]) -> tuple[dict[str, LayerMoments], dict[str, LayerMoments] | None]:
    """Reads moments with the fingerprint `key`.

    Returns:
        The moments and the held-out moments by module name; None for the latter if there are none.

    Raises:
        CalibrationError: if the file is not a cache of moments, or its fingerprint differs.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{file} is not a cache of moments ({error}). Use another file or delete it.") from error
    if "settings" not in metadata:
        raise CalibrationError(f"{file} is not a cache of moments. Use another file.")
    stale = [text for name, text in _NAMES.items() if metadata.get(name) != key[name]]
    if stale:
        raise CalibrationError(
            f"{file} holds the moments of {' and '.join(stale)}. Delete it to calibrate again, or use another file."
        )
    parts: dict[str, dict[str, dict[str, Tensor]]] = {"moments": {}, "held_out": {}}
    for name, tensor in tensors.items():
        part, layer, field = name.split("/")
        parts[part].setdefault(layer, {})[field] = tensor
    moments, held_out = (
        {layer: LayerMoments.from_tensors(fields) for layer, fields in layers.items()} for layers in parts.values()
    )
    return moments, held_out or None
