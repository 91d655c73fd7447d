"""Runtimes that run a written graph on a CPU: onnxruntime and OpenVINO."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray

from ..errors import CheckpointError, ExtraError, first_line
from .openvino import PRECISION_KEY
from .options import ENCODERS, GRAPH_FILES, INT8_FILES, Runtime

Arrays = dict[str, NDArray[Any]]

_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def precision_settings(precision: str) -> dict[str, str]:
    """OpenVINO's settings for a precision; of an int8 graph it chooses that of the rest by the processor."""
    return {"INFERENCE_PRECISION_HINT": _HINTS[precision]} if precision in _HINTS else {}


class Session(ABC):
    """A graph in a runtime, with as many threads as torch has, which sleep while it does not run.

    Attributes:
        inputs: shapes of the inputs by name, with None for an axis of any size.
        outputs: names of the outputs.
        bytes: size of the graph and its weights on disk.
        precision: what it is run in; int8 where that is asked for the products.
        runtime: name of the runtime.
    """

    runtime: ClassVar[Runtime]

    inputs: dict[str, tuple[int | None, ...]]
    outputs: tuple[str, ...]
    bytes: int
    precision: str

    @abstractmethod
    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs for inputs, both by name."""


class OnnxSession(Session):
    """A graph in onnxruntime."""

    runtime = "onnxruntime"

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves cores to other work
        options.log_severity_level = 3
        self.precision = "int8" if file.name in INT8_FILES else "float32"
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = {
            value.name: tuple(size if isinstance(size, int) else None for size in value.shape)
            for value in self._session.get_inputs()
        }
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """See `Session`."""
        return dict(zip(self.outputs, self._session.run(list(self.outputs), dict(feed)), strict=True))


class OpenVinoSession(Session):
    """A graph in OpenVINO, in the precision that it names."""

    runtime = "openvino"

    def __init__(self, file: Path) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(file)
        precision = model.get_rt_info(PRECISION_KEY).astype(str) if model.has_rt_info(PRECISION_KEY) else ""
        self.precision = precision or "float32"
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            **precision_settings(self.precision),
        }
        self._compiled = core.compile_model(model, "CPU", settings)
        self.inputs = {
            value.any_name: tuple(size.get_length() if size.is_static else None for size in value.partial_shape)
            for value in self._compiled.inputs
        }
        # Before compiling, which may give an output a second name.
        self.outputs = tuple(value.any_name for value in model.outputs)

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """See `Session`."""
        outputs = self._compiled(dict(feed), share_inputs=True)
        return {name: outputs[number] for number, name in enumerate(self.outputs)}


def graph_in(folder: Path) -> Path | None:
    """The graph in a folder, or the file itself if it is one; None if there is none."""
    if folder.name in GRAPH_FILES and folder.is_file():
        return folder
    return next((folder / name for name in GRAPH_FILES if (folder / name).is_file()), None)


def encoder_beside(file: Path) -> Path | None:
    """The encoder's graph beside that of its decoder; None beside that of a whole model."""
    return file.with_name(ENCODERS[file.name]) if file.name in ENCODERS else None


def graph_parts(file: Path) -> list[Path]:
    """The files of a graph: itself, and its weights if they are beside it."""
    return [*file.parent.glob(f"{file.name}*"), *([file.with_suffix(".bin")] if file.suffix == ".xml" else [])]


def open_graph(file: Path, runtime: Runtime | None = None) -> Session:
    """A graph, ready to run.

    Args:
        file: the graph.
        runtime: what runs it; OpenVINO runs ONNX graphs, too. None for that of the format.

    Raises:
        ExtraError: if its runtime is not installed.
        CheckpointError: if the file is damaged.
    """
    runtime = runtime or ("openvino" if file.suffix == ".xml" else "onnxruntime")
    try:
        importlib.import_module(runtime)
    except ImportError as error:
        extra = "openvino" if runtime == "openvino" else "onnx"
        raise ExtraError(f"{file} needs {runtime}: pip install 'collab[{extra}]'.") from error
    try:
        session: Session = OpenVinoSession(file) if runtime == "openvino" else OnnxSession(file)
        session.bytes = sum(path.stat().st_size for path in graph_parts(file))
        return session
    except Exception as error:  # each runtime has its own exceptions
        raise CheckpointError(f"{file} could not be read: {_reason(error)}. Export the model again.") from error


def _reason(error: Exception) -> str:
    """What a runtime says is wrong, without the places in its own source that OpenVINO names first."""
    lines = [line for line in str(error).splitlines() if not line.startswith(("Exception from ", "Check "))]
    text = next((line.strip() for line in lines if line.strip()), first_line(error))
    return text.partition(" Please ")[0].rstrip("!.")
