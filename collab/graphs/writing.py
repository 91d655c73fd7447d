"""The graphs of a model that writes text: of its encoder, if it has one, and of its decoder with a cache.

The encoder's graph gives the keys and values of cross-attention, which are those of every step. The decoder's graph
takes any number of tokens after a cache of any length, none included, so that it takes the first step too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..models.inputs import decoder_vocabulary, has_decoder, input_kind, longest_input, longest_target
from .caches import CACHE_AXES, CROSS, PAST, PRESENT, cache_of, new_cache, tensors_of
from .options import GraphPart
from .samples import check_writes, sample, writes
from .trace import Graph


def graphs_of(model: PreTrainedModel) -> list[Graph]:
    """The graphs that a model is: one, or its encoder's and its decoder's.

    Raises:
        UnsupportedArchitectureError: if it is none.
    """
    if not writes(model):
        return [Graph(model)]
    return [EncoderGraph(model), StepGraph(model)] if has_decoder(model) else [DecoderGraph(model)]


class EncoderGraph(Graph):
    """The encoder of a model that writes, with the keys and values of the cross-attention to it."""

    part: ClassVar[GraphPart] = "encoder"

    def check(self) -> None:
        check_writes(self.model)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        model: Any = self.model
        states = model.get_encoder()(**inputs, return_dict=True).last_hidden_state  # (B, S, D)
        cache = new_cache(True)
        # One token of the decoder has every layer project the states. What it computes besides is not in the graph.
        token = torch.zeros_like(states[:, :1, 0], dtype=torch.long)
        _decode(model, token, states, inputs.get("attention_mask"), cache)
        crossing = {f"{PRESENT}{name}": value for name, value in tensors_of(cache).items() if CROSS in name}
        return {"last_hidden_state": states} | crossing


class Size(NamedTuple):
    """Size of a decoder's inputs: rows, tokens of the encoder, tokens in the cache, and new ones."""

    batch: int
    read: int
    past: int
    new: int


_SIZES = (Size(1, 1, 0, 1), Size(1, 7, 0, 4), Size(3, 16, 5, 1), Size(4, 33, 2, 3), Size(2, 128, 30, 1))
_TRACED = Size(2, 8, 4, 3)


class DecoderGraph(Graph):
    """A decoder with its cache: new tokens after those whose keys and values are given."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._numbered = "position_ids" in inspect.signature(model.forward).parameters
        with torch.no_grad():
            # By name, the shapes of the cache's tensors; heads and width are 1 and R of a converted layer's keys.
            self._held = {f"{PAST}{name}": tuple(value.shape) for name, value in self._filled(model).items()}
        super().__init__(model)
        self.main = "input_ids"

    def check(self) -> None:
        check_writes(self.model)

    def axes(self) -> Mapping[str, tuple[str | None, ...]]:
        return {
            name: CACHE_AXES if name in self._held else ("batch", "total" if name == "attention_mask" else "new")
            for name in self.example()
        }

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        cache = cache_of({name.removeprefix(PAST): inputs[name] for name in self._held})
        logits = self._step(inputs, cache)
        written = {f"{PRESENT}{name}": value for name, value in tensors_of(cache).items() if CROSS not in name}
        return {"logits": logits} | written

    def example(self) -> dict[str, Tensor]:
        return self._inputs(_TRACED, torch.Generator().manual_seed(0))

    def samples(self) -> list[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        return [self._inputs(self._within(size), generator) for size in _SIZES]

    def _filled(self, model: Any) -> dict[str, Tensor]:
        """The tensors of a cache after one token."""
        cache = new_cache(False)
        ids = torch.zeros(1, 1, dtype=torch.long)
        model(input_ids=ids, past_key_values=cache, use_cache=True, return_dict=True)
        return tensors_of(cache)

    def _step(self, inputs: Mapping[str, Tensor], cache: Any) -> Tensor:
        """The logits, (B, T, V)."""
        given = {name: value for name, value in inputs.items() if name not in self._held}
        return self.model(**given, past_key_values=cache, use_cache=True, return_dict=True).logits

    def _within(self, size: Size) -> Size:
        longest = longest_target(self.model)
        new = min(size.new, longest)
        return size._replace(new=new, past=min(size.past, longest - new))

    def _inputs(self, size: Size, generator: torch.Generator) -> dict[str, Tensor]:
        """Random tokens after a random cache, which is padded on the left in every row but the first."""
        total = size.past + size.new
        hidden = torch.arange(size.batch).clamp(max=size.past).unsqueeze(1)  # tokens of padding
        mask = (torch.arange(total) >= hidden).long()  # (B, S)
        inputs = {"input_ids": self._tokens(size, generator), "attention_mask": mask}
        if self._numbered:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, size.past :]
        return inputs | self._random(self._held, size.batch, size.past, generator)

    def _tokens(self, size: Size, generator: torch.Generator) -> Tensor:
        vocabulary = decoder_vocabulary(self.model)
        return torch.randint(vocabulary, (size.batch, size.new), generator=generator)

    def _random(self, names: Iterable[str], batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Random tensors of the cache."""
        shapes = {name: self._held[name] for name in names}
        return {
            name: torch.randn(batch, heads, length, width, generator=generator)
            for name, (_, heads, _, width) in shapes.items()
        }


class StepGraph(DecoderGraph):
    """The decoder of an encoder–decoder, which is given the keys and values of cross-attention."""

    part: ClassVar[GraphPart] = "decoder"

    def __init__(self, model: PreTrainedModel) -> None:
        # Images and recordings of one size give equally many states, and no mask.
        self._read_axis = "read" if input_kind(model) == "text" else None
        super().__init__(model)

    def axes(self) -> Mapping[str, tuple[str | None, ...]]:
        axes = dict(super().axes())
        axes |= {name: ("batch", None, self._read_axis, None) for name in axes if CROSS in name}
        return axes | ({"encoder_attention_mask": ("batch", "read")} if "encoder_attention_mask" in axes else {})

    def _filled(self, model: Any) -> dict[str, Tensor]:
        cache = new_cache(True)
        inputs = sample(model, 1, 1, torch.Generator().manual_seed(0))
        token = torch.zeros(1, 1, dtype=torch.long)
        model(**inputs, decoder_input_ids=token, past_key_values=cache, use_cache=True, return_dict=True)
        return tensors_of(cache)

    def _step(self, inputs: Mapping[str, Tensor], cache: Any) -> Tensor:
        model: Any = self.model
        mask, tokens = inputs.get("encoder_attention_mask"), inputs["input_ids"]
        read = next((inputs[name].shape[2] for name in self._held if CROSS in name), None)
        if read is None:  # no head reads the encoder
            read = 1 if mask is None else mask.shape[1]
        # Layers ask for the encoder's states, and read the cache.
        states = torch.zeros(1).expand(tokens.shape[0], read, model.get_encoder().config.hidden_size)
        return _decode(model, tokens, states, mask, cache).logits

    def _within(self, size: Size) -> Size:
        size = super()._within(size)
        return size._replace(read=min(size.read, longest_input(self.model)))

    def _states(self, size: Size) -> int:
        """The number of the encoder's states."""
        if self._read_axis is not None:
            return size.read
        return next((shape[2] for name, shape in self._held.items() if CROSS in name), 1)

    def _inputs(self, size: Size, generator: torch.Generator) -> dict[str, Tensor]:
        inputs = {"input_ids": self._tokens(size, generator)}
        if self._read_axis is not None:
            read = sample(self.model, size.batch, size.read, generator)
            inputs["encoder_attention_mask"] = read["attention_mask"]
        crossing = [name for name in self._held if CROSS in name]
        own = [name for name in self._held if CROSS not in name]
        return (
            inputs
            | self._random(own, size.batch, size.past, generator)
            | self._random(crossing, size.batch, self._states(size), generator)
        )


def _decode(model: Any, tokens: Tensor, states: Tensor, mask: Tensor | None, cache: Any) -> Any:
    """A decoder's outputs for tokens, (B, T), and an encoder's states, (B, S, D), with their mask."""
    masks = {} if mask is None else {"attention_mask": mask}
    return model(
        encoder_outputs=BaseModelOutput(states),
        decoder_input_ids=tokens,
        past_key_values=cache,
        use_cache=True,
        return_dict=True,
        **masks,
    )
