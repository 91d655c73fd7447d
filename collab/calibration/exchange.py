"""Moments of layers that different processes own, for all of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..io.failures import writing
from ..processes import from_main, gathered, wait_for_everyone
from ..reparametrization.moments import LayerMoments

Moments = dict[str, LayerMoments]


def exchanged(
    names: Sequence[str], own: Moments, held_out: Moments | None, scratch: Path | None
) -> tuple[Moments, Moments | None]:
    """The moments of all layers, and the held-out ones, of which every process has some. All processes call this.

    Args:
        names: names of the layers, in the order of the model.
        own: moments of the layers that this process owns.
        held_out: held-out moments of the same layers; None if there are none.
        scratch: a folder that all processes see, for a file of each layer, which is mapped into memory: what is not
            read takes none. None to send the moments to every process.
    """
    both = [_of_all(names, own, scratch)]
    if not any(gathered(held_out is None)):
        both.append(_of_all(names, held_out or {}, scratch))
    return both[0], both[1] if len(both) > 1 else None


def _of_all(names: Sequence[str], own: Moments, scratch: Path | None) -> Moments:
    tensors = {name: _on_cpu(moments) for name, moments in own.items()}
    if scratch is None:
        tensors = {name: fields for part in gathered(tensors) for name, fields in part.items()}
        return {name: LayerMoments.from_tensors(tensors[name]) for name in names}
    folder = scratch / from_main(lambda: uuid.uuid4().hex)
    with writing(str(scratch), "Nothing was written."):
        folder.mkdir(exist_ok=True)
        for name, fields in tensors.items():
            save_file(fields, folder / name)
    wait_for_everyone()
    return {name: LayerMoments.from_tensors(load_file(folder / name)) for name in names}


def _on_cpu(moments: LayerMoments) -> dict[str, Tensor]:
    return {field: tensor.contiguous().cpu() for field, tensor in moments.tensors().items()}
