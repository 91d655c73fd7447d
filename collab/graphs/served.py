"""A written graph that runs like its model: for comparison, evaluation and measurement of speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from ..errors import ConfigurationError
from ..io.checkpoint import Checkpoint, processor_of
from ..io.history import read_history
from ..io.load import config_of, model_class_of
from ..io.read import Source, read_config, resolve_source
from .runtime import Session, graph_in, open_graph
from .samples import feed_of


def served(model_class: type[PreTrainedModel], config: PretrainedConfig, session: Session) -> PreTrainedModel:
    """A graph as a model of its class. Its parameters have shapes, but take no memory and are all zero.

    Args:
        model_class: class of the model that the graph was written from.
        config: its config.
        session: the graph.
    """
    with torch.device("meta"):
        model: Any = model_class(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.zeros(()).expand(parameter.shape), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros((), dtype=buffer.dtype).expand(buffer.shape))
    model.tie_weights()
    model.forward = GraphModule(session).forward
    model.graph_session = session
    return model.eval()


class GraphModule(nn.Module):
    """A graph as a module, to compare it with the model in memory that it was written from."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def forward(self, **inputs: Any) -> ModelOutput:
        """The outputs that the graph has."""
        outputs = self.session.run(feed_of(inputs, self.session.inputs))
        return ModelOutput({name: torch.from_numpy(value) for name, value in outputs.items()})


def session_of(model: nn.Module) -> Session | None:
    """The graph that a model is; None for a model in PyTorch."""
    return getattr(model, "graph_session", None)


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
