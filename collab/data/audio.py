"""Recordings: WAV files as waveforms."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, first_line

_TYPES: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}
"""Numbers of PCM samples by their size in bytes."""


@dataclass(frozen=True)
class Recording:
    """One recording.

    Attributes:
        waveform: samples between -1 and 1, (samples,); the mean of several channels.
        rate: samples per second.
        path: its file, for messages; None if there is none.
    """

    waveform: NDArray[np.float32]
    rate: int
    path: Path | None = None

    def __str__(self) -> str:
        return "A recording" if self.path is None else str(self.path)


def read_wav(path: Path) -> Recording:
    """Reads a WAV file of PCM samples of 8, 16 or 32 bits.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{path} could not be read: {first_line(error)}. Give WAV files of PCM samples.") from error
    if width not in _TYPES:
        raise DataError(f"{path} has samples of {8 * width} bits; give WAV files of 8, 16 or 32.")
    samples = np.frombuffer(data, _TYPES[width]).astype(np.float32)
    waveform = samples / 128 - 1 if width == 1 else samples / 2.0 ** (8 * width - 1)
    return Recording(waveform.reshape(-1, channels).mean(axis=1).astype(np.float32), rate, path)


def recordings_in(folder: Path) -> Iterator[Recording]:
    """The recordings of a folder and of the folders in it, in the order of their names."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() == ".wav":
            yield read_wav(path)
