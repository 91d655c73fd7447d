"""A written graph that runs like its model: for comparison, evaluation and measurement of speed."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME, ModelOutput

from ..errors import ConfigurationError
from ..io.checkpoint import Checkpoint, processor_of
from ..io.failures import reading
from ..io.history import read_history
from ..io.load import config_of, model_class_of
from ..io.read import Source, read_config, resolve_source
from ..modeling.collab_model import positions_by_mask
from ..models.families import family_of
from ..models.inputs import decoder_of, position_padding
from .caches import CROSS, PAST, PRESENT, cache_of, empty, tensors_of
from .runtime import Session, encoder_beside, graph_in, open_graph
from .samples import Granted, feed_of


def served(
    model_class: type[PreTrainedModel], config: PretrainedConfig, session: Session, encoder: Session | None = None
) -> PreTrainedModel:
    """A graph as a model of its class. Its parameters have shapes, but take no memory and are all zero.

    Args:
        model_class: class of the model that the graph was written from.
        config: its config.
        session: the graph, or that of the decoder.
        encoder: the graph of the encoder, if it is one of its own.
    """
    with torch.device("meta"):
        model: Any = model_class(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.zeros(()).expand(parameter.shape), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros((), dtype=buffer.dtype).expand(buffer.shape))
    model.tie_weights()
    graph = module_of(model, session, encoder)
    signature = inspect.signature(type(model).forward)

    def forward(self: PreTrainedModel, *given: Any, **inputs: Any) -> ModelOutput:
        named = dict(signature.bind_partial(self, *given).arguments)
        del named["self"]
        return graph(**named, **inputs)

    model.forward = types.MethodType(forward, model)
    if isinstance(graph, WritingModule):
        functools.update_wrapper(forward, type(model).forward)  # by whose signature `generate` knows what to give
        if graph.encoder is not None:
            model.get_encoder = lambda *_, **__: graph.encoder
    model.graph_session = session
    return model.eval()


def module_of(model: PreTrainedModel, session: Session, encoder: Session | None = None) -> nn.Module:
    """A graph as a module, and that of an encoder before it, which were written from a model."""
    if not any(name.startswith(PAST) for name in session.inputs):
        return GraphModule(session, model)
    return WritingModule(session, None if encoder is None else GraphModule(encoder, model), _numbering(model))


Numbering = Callable[[Tensor, Tensor, int], Tensor]
"""The positions of a decoder's tokens (B, T), (B, T) or (T,), by their mask (B, S) and the number in the cache."""


def _numbering(model: PreTrainedModel) -> Numbering:
    """How a model numbers tokens whose positions are not given."""
    padding = position_padding(decoder_of(model))
    if family_of(model).base.counts_by_mask:
        return lambda ids, mask, past: positions_by_mask(mask, ids.shape[1])
    if padding is None:
        return lambda ids, mask, past: torch.arange(past, past + ids.shape[1])

    def after_padding(ids: Tensor, mask: Tensor, past: int) -> Tensor:
        seen = ids != padding
        return (seen.cumsum(1) + past) * seen + padding

    return after_padding


class GraphModule(nn.Module):
    """A graph as a module, to compare it with the model in memory that it was written from."""

    def __init__(self, session: Session, model: PreTrainedModel) -> None:
        super().__init__()
        self.session, self._granted = session, Granted(model)

    def forward(self, **kwargs: Any) -> ModelOutput:
        """The outputs that the graph has. `generate` gives inputs to an encoder whose argument has this name."""
        outputs = self.session.run(feed_of(kwargs, self.session.inputs, self._granted))
        return ModelOutput({name: torch.from_numpy(value) for name, value in outputs.items()})


class WritingModule(nn.Module):
    """The graph of a decoder with its cache as a module that `generate` calls.

    Attributes:
        encoder: the graph of the encoder, which also gives the keys and values of cross-attention; None without one.
    """

    def __init__(self, session: Session, encoder: GraphModule | None, numbering: Numbering) -> None:
        super().__init__()
        self.session, self.encoder = session, encoder
        self._numbering = numbering
        self._held = [name for name in session.inputs if name.startswith(PAST)]

    def forward(self, past_key_values: Any = None, encoder_outputs: Any = None, **inputs: Any) -> ModelOutput:
        """The logits of all tokens that are given, (B, T, V), and the cache with them.

        The first call takes no cache, or an empty one of any kind; the others take that which the call before gave.
        """
        if self.encoder is not None and encoder_outputs is None:
            encoder_outputs = self.encoder(**inputs)
        ids = inputs["input_ids" if self.encoder is None else "decoder_input_ids"]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        held = tensors_of(past_key_values) if past else self._empty(len(ids), encoder_outputs)
        feed = {f"{PAST}{name}": tensor for name, tensor in held.items()}
        feed |= self._read(inputs, past) | {"input_ids": ids}
        results = self.session.run({name: feed[name].numpy() for name in self.session.inputs})
        outputs = {name: torch.from_numpy(value) for name, value in results.items()}
        if inputs.get("use_cache") is False:  # the next call gives all tokens again
            return ModelOutput(logits=outputs["logits"])
        written = {name.removeprefix(PRESENT): outputs[name] for name in outputs if name.startswith(PRESENT)}
        return ModelOutput(logits=outputs["logits"], past_key_values=cache_of(held | written))

    def _empty(self, rows: int, encoder_outputs: Any) -> dict[str, Tensor]:
        """The tensors of a cache of no tokens, with the keys and values of cross-attention if there are any."""
        return {
            name: (
                encoder_outputs[f"{PRESENT}{name}"]
                if CROSS in name
                else empty(self.session.inputs[f"{PAST}{name}"], rows)
            )
            for name in (name.removeprefix(PAST) for name in self._held)
        }

    def _read(self, inputs: Mapping[str, Any], past: int) -> dict[str, Tensor]:
        """Masks and positions as the graph takes them."""
        if self.encoder is not None:
            _check_end(inputs.get("decoder_attention_mask"))
            mask = inputs.get("attention_mask")
            if mask is None and "input_ids" in inputs:
                mask = torch.ones_like(inputs["input_ids"])
            return {} if mask is None else {"encoder_attention_mask": mask.long()}
        ids, mask, positions = (inputs.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
        assert ids is not None
        if mask is None:
            mask = torch.ones(len(ids), past + ids.shape[1], dtype=torch.long)
        if positions is None:
            positions = self._numbering(ids, mask, past)
        return {"attention_mask": mask.long(), "position_ids": positions.expand(ids.shape).contiguous()}


def _check_end(mask: Any) -> None:
    """Raises a ConfigurationError for a mask of the decoder's tokens that hides others than the last ones."""
    if mask is not None and bool((mask.diff(dim=1) > 0).any()):
        raise ConfigurationError(
            "The graph's decoder reads all of its tokens: give texts to go on from without padding, or of one length."
        )


def session_of(model: nn.Module) -> Session | None:
    """The graph that a model is; None for a model in PyTorch."""
    return getattr(model, "graph_session", None)


def runtime_of(model: PreTrainedModel) -> tuple[str, str]:
    """What runs a model, ``torch`` or the runtime of its graph; and its dtype, or the precision of the graph."""
    session = session_of(model)
    dtype = str(model.dtype).removeprefix("torch.")
    return ("torch", dtype) if session is None else (session.runtime, session.precision)


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
    beside, session = encoder_beside(file), open_graph(file)
    encoder = None if beside is None else open_graph(beside)
    if encoder is not None:
        session.bytes += encoder.bytes
    model: Any = served(model_class, config, session, encoder)
    if (source.folder / GENERATION_CONFIG_NAME).is_file():
        with reading(f"{GENERATION_CONFIG_NAME} in {source.folder}"):
            model.generation_config = GenerationConfig.from_pretrained(source.folder)
        model.generation_config.cache_implementation = None  # a graph has its own
    return Checkpoint(model, processor_of(model, source.folder), source, read_history(source.folder))
