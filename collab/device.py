"""Devices and dtypes to compute with.

Nothing at the top imports torch, so that the command line can show what there is to choose from at once.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Literal, get_args

from .errors import ConfigurationError, DeviceError
from .processes import local_rank, processes

if TYPE_CHECKING:
    import torch

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def check_device(name: str | None) -> None:
    """Raises a ConfigurationError for a name that is neither None nor one of `DEVICES`."""
    if name not in (None, *DEVICES):
        raise ConfigurationError(f"device must be {' or '.join(DEVICES)}, not {name!r}.")


def device_name(device: torch.device) -> str:
    """The name of a GPU; of a CPU, its architecture."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def resolve_device(name: str | None, default: torch.device | None = None, *, float64: bool = False) -> torch.device:
    """The device to compute on.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1`` and so on; None for `default`. Of several processes that train together,
            ``cuda`` gives each its own GPU.
        default: device where none is named; None for a GPU where there is one, else the CPU.
        float64: whether the device that is named must have float64.

    Raises:
        ConfigurationError: if `name` is not the name of a device.
        DeviceError: if there is no such device here.
    """
    import torch

    if name is None:
        if default is not None:
            return default
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device("cuda", local_rank()) if name == "cuda" and processes() > 1 else torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"Unknown device {name!r}; use for example cpu, cuda or cuda:1.") from error
    try:
        torch.zeros(1, dtype=torch.float64 if float64 else torch.float32, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        able = " that computes in float64" if float64 else ""
        raise DeviceError(f"No device {name!r} here{able}. Use device=None or 'cpu' (omit --device).") from error
    return device
