"""The exceptions that collab raises; their messages say what to do.

All derive from `CollabError`, so ``except collab.CollabError`` catches them; each also derives from the built-in
exception that a caller who does not know collab would expect.
"""


class CollabError(Exception):
    """Base of every error that collab raises on purpose."""


class ConfigurationError(CollabError, ValueError):
    """An option has an invalid value."""


class RankError(ConfigurationError):
    """A rank is out of range, or there is not one rank per attention layer."""


class ShapeError(CollabError, ValueError):
    """Weights or inputs do not have the shapes of one multi-head attention layer."""


class CheckpointError(CollabError, OSError):
    """A checkpoint is missing, incomplete or cannot be read."""


class WeightsError(CollabError, ValueError):
    """Weights were read, but cannot be converted (NaN, infinite, missing, quantized)."""


class UnsupportedArchitectureError(CollabError, ValueError):
    """The model's attention is of a kind that collab does not convert."""


class AlreadyConvertedError(CollabError, ValueError):
    """The model is collaborative already."""


class NotConvertedError(CollabError, ValueError):
    """The model is not collaborative, so there is nothing to expand."""


class DeviceError(CollabError, RuntimeError):
    """The requested device is not available."""


class OutOfMemoryError(CollabError, MemoryError):
    """A model does not fit into memory with the requested batch."""


class OutputError(CollabError, OSError):
    """The output folder cannot be written."""


class VerificationError(CollabError, RuntimeError):
    """A written model does not reload to the same weights, or its outputs differ."""


class DataError(CollabError, ValueError):
    """Data cannot be read, or does not fit the model or the task."""


class CalibrationError(DataError):
    """Calibration data cannot be used, or a cache of moments belongs to something else."""


class TrainingError(CollabError, RuntimeError):
    """Training cannot continue: the loss is NaN, memory is short, or the work folder holds another run."""


class ProcessError(CollabError, RuntimeError):
    """The processes that work together cannot reach each other, or one of them has ended."""


class ExtraError(CollabError, ImportError):
    """A required package is not installed; it comes with one of collab's extras."""


class BudgetError(ConfigurationError):
    """No conversion meets the budget."""


def is_short_of_memory(error: BaseException) -> bool:
    """Whether another library's error says that memory ran out; they say it in ways of their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's is a RuntimeError
        return True
    return any(text in str(error) for text in _SHORT_OF_MEMORY)


_SHORT_OF_MEMORY = (
    "can't allocate memory",
    "annot allocate memory",
    "bad_alloc",
    "bad allocation",
    "failed to map segment",
    "can't start new thread",
    "os error 12",
)


def first_line(error: BaseException) -> str:
    """The first line of another library's error message, without the advice below it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
