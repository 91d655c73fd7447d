"""A written graph that runs like its model: for comparison, evaluation and measurement of speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from ..errors import ConfigurationError
from ..io.checkpoint import Checkpoint, processor_of
from ..io.history import read_history
from ..io.load import config_of, model_class_of
from ..io.read import Source, read_config, resolve_source
from .runtime import Session, graph_in, open_graph


class _Served:
    """The part of a served model that is not its class's: it has no weights, and a session computes what it returns."""

    session: Session

    def forward(self, **inputs: Any) -> ModelOutput:
        """The outputs that the graph has."""
        if "input_ids" in inputs:  # what a model takes for granted, a graph has to be given
            ids = inputs["input_ids"]
            inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)} | inputs
        feed = {name: inputs[name].numpy() for name in self.session.inputs}
        return ModelOutput({name: torch.from_numpy(value) for name, value in self.session.run(feed).items()})

    @property
    def device(self) -> torch.device:
        """The processor, where graphs run."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """That of the outputs."""
        return torch.float32

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The model itself; a graph cannot be moved or cast."""
        return self

    def __call__(self, **inputs: Any) -> ModelOutput:
        """See `forward`."""
        return self.forward(**inputs)


def served(model_class: type[PreTrainedModel], config: PretrainedConfig, session: Session) -> PreTrainedModel:
    """A graph as a model of its class, without weights.

    Args:
        model_class: class of the model that the graph was written from.
        config: its config.
        session: the graph.
    """
    with torch.device("meta"):
        model: Any = model_class(config)
    model.__class__ = type(model_class.__name__, (_Served, model_class), {})
    model.session = session
    return model.eval()


class GraphModule(nn.Module):
    """A graph as a module, to compare it with the model in memory that it was written from."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def forward(self, **inputs: Tensor) -> ModelOutput:
        """The outputs that the graph has."""
        return _Served.forward(self, **inputs)  # type: ignore[arg-type]


def session_of(model: nn.Module) -> Session | None:
    """The graph that a model is; None for a model in PyTorch."""
    return model.session if isinstance(model, _Served) else None


def find_graph(name: str) -> tuple[Source, Path] | None:
    """The graph in a folder that `collab export` wrote, or a graph file in one; None if there is none."""
    path = Path(name).expanduser()
    file = graph_in(path) if path.exists() else None
    return None if file is None else (resolve_source(str(file.parent)), file)


def load_graph(source: Source, file: Path, auto_class: Any = None) -> Checkpoint:
    """Reads an exported model.

    Args:
        source: its folder.
        file: the graph.
        auto_class: the Auto class of the task's head, which the model must have; None for whatever it has.

    Raises:
        CheckpointError: if the folder or the graph is damaged.
        ConfigurationError: if the graph has another head.
        ExtraError: if its runtime is not installed.
    """
    config = config_of(source)
    model_class = model_class_of(read_config(source.folder), source.name)
    if auto_class is not None and not issubclass(model_class, auto_class._model_mapping.get(type(config), ())):
        raise ConfigurationError(
            f"{source.name} was exported from a {model_class.__name__}, which has no head for this task. Choose "
            "another task, or export a model with that head."
        )
    model = served(model_class, config, open_graph(file))
    return Checkpoint(model, processor_of(model, source.folder), source, read_history(source.folder))
