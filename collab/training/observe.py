"""Recording the inputs and outputs of a native model's attention layers, for refinement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.features import Batch
from ..modeling.collab_attention import LayerKind, as_linear
from ..models.families import Family, arguments_of
from ..models.inputs import on_device, query_mask
from ..models.states import evaluating, in_parts
from .options import RefineOptions

_PIECE = 512  # tokens that the original runs on at a time, unless a single row has more
_CHUNK = 4  # steps whose recordings are kept in memory
_TIMES = 3  # uses of each recording: running the original takes most of the time


@dataclass(frozen=True)
class LayerPass:
    """Inputs and output of one attention layer of the original in one pass.

    Attributes:
        queries: x, (B, T, D_q).
        keys: y, (B, S, D_k).
        values: (B, S, K).
        context: input of W_O, (B, T, K).
        mask: attention mask as passed to the layer.
        position_bias: (1 or B, H, T, S), or None.
        seen: (B, T, 1), True for queries that are not padding; None without padding.
        number: index of the pass, for a layer that the model applies several times.
        is_causal: as passed to the layer; None if it was not.
        positions: what the layer was given to tell positions apart in queries and keys; None for most.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    context: Tensor
    mask: Any
    position_bias: Tensor | None
    seen: Tensor | None
    number: int
    is_causal: bool | None = None
    positions: Any = None


Visit = Callable[[str, LayerPass], None]


class _Enough(Exception):  # noqa: N818  # nothing went wrong
    """Ends a run of the original after its last attention layer."""


class Observer:
    """Runs a native model and passes the inputs and outputs of its attention layers to a callback.

    Args:
        model: a native model.
        family: its family.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        self.model = model
        self._family = family
        self._layers = family.attention_layers(model)
        self._inputs: dict[str, dict[str, Any]] = {}
        self._values: dict[str, Tensor] = {}
        self._number: dict[str, int] = {}
        self._passes: dict[frozenset[str], int] = {}  # number in a run, by the names in the batch
        self._left = -1
        self._masks: dict[LayerKind, Tensor | None] = {}  # of the tokens with queries
        self._visit: Visit | None = None

    def projections(self, name: str) -> tuple[nn.Linear, nn.Linear]:
        """W_V and W_O of a layer."""
        layer = self._layers[name]
        output = as_linear(self._family.output_projection(self.model, name))
        return self._family.projection(layer, "value"), output

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Registers the hooks that `run` needs, and turns dropout off, inside the context."""
        handles = []
        for name, layer in self._layers.items():
            value = getattr(layer, self._family.names(layer)["value"])
            output = self._family.output_projection(self.model, name)
            handles.append(layer.register_forward_pre_hook(self._before(name), with_kwargs=True))
            handles.append(value.register_forward_hook(self._value(name)))
            handles.append(output.register_forward_pre_hook(self._after(name)))
        try:
            with evaluating(self.model), in_parts(self._layers.values()):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def run(self, batch: Batch, visit: Visit) -> None:
        """Runs the model on a batch and calls `visit` for every pass of every layer."""
        moved = on_device(batch, self.model.device)
        self._masks = {kind: _if_padded(query_mask(moved, kind)) for kind in get_args(LayerKind)}
        self._visit = visit
        self._number = dict.fromkeys(self._layers, 0)
        kind = frozenset(batch)
        self._left = self._passes.get(kind, -1)
        try:
            with torch.no_grad(), contextlib.suppress(_Enough):
                self.model(**moved)
            self._passes[kind] = sum(self._number.values())
        finally:
            self._visit = None
            self._inputs.clear()
            self._values.clear()

    def _before(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            self._inputs[name] = arguments_of(module, args, kwargs)

        return keep

    def _value(self, name: str) -> Callable[..., None]:
        number, parts = self._family.value_rows(self._layers[name])

        def keep(module: nn.Module, args: tuple, output: Tensor) -> None:
            self._values[name] = output.chunk(parts, dim=-1)[number]

        return keep

    def _after(self, name: str) -> Callable[..., None]:
        layer = self._layers[name]
        kind = self._family.kind(layer)

        def show(module: nn.Module, args: tuple) -> None:
            if self._visit is None or name not in self._inputs:
                return
            given = self._inputs.pop(name)
            queries = given["hidden_states"]
            keys = self._family.keys_input(layer, given)
            mask, bias = self._family.scores_input(layer, given)
            shown = LayerPass(
                queries.float(),
                keys.float(),
                self._values.pop(name).float(),
                args[0].float(),
                mask.float() if isinstance(mask, Tensor) and mask.is_floating_point() else mask,
                None if bias is None else bias.float(),
                self._seen(queries, kind),
                self._number[name],
                given.get("is_causal"),
                self._family.positions_input(layer, given),
            )
            self._number[name] += 1
            self._visit(name, shown)
            self._left -= 1
            if self._left == 0:
                raise _Enough

        return show

    def _seen(self, queries: Tensor, kind: LayerKind) -> Tensor | None:
        rows = queries.shape[:2]
        mask = self._masks[kind]
        if mask is None or mask.numel() != rows.numel():
            return None
        return mask.reshape(*rows, 1)


def _if_padded(mask: Tensor | None) -> Tensor | None:
    """A mask as booleans; None if it hides nothing."""
    return None if mask is None or bool(mask.all()) else mask.bool()


@dataclass(frozen=True)
class Recording:
    """The passes of the original's attention layers on one batch."""

    passes: list[tuple[str, LayerPass]]
    rows: int
    tokens: int


def recordings(
    watch: Observer, names: Container[str], pieces: Sequence[Batch], options: RefineOptions
) -> Iterator[Recording]:
    """Endless recordings of batches in random order: those of a few steps at a time, each used several times."""
    generator = torch.Generator().manual_seed(options.seed)
    drawn = _in_random_order(pieces, generator)
    while True:
        chunk: list[Recording] = []
        rows = tokens = 0
        while rows < _CHUNK * options.rows and tokens < _CHUNK * options.tokens:
            piece = next(drawn)
            chunk.append(_record(watch, names, piece))
            rows, tokens = rows + chunk[-1].rows, tokens + chunk[-1].tokens
        for _ in range(_TIMES):
            for place in torch.randperm(len(chunk), generator=generator).tolist():
                yield chunk[place]


def _record(watch: Observer, names: Container[str], piece: Batch) -> Recording:
    passes: list[tuple[str, LayerPass]] = []

    def visit(name: str, shown: LayerPass) -> None:
        if name in names:
            passes.append((name, shown))

    watch.run(piece, visit)
    return Recording(passes, _rows(piece), _tokens(piece))


def _in_random_order(pieces: Sequence[Batch], generator: torch.Generator) -> Iterator[Batch]:
    """Endless batches in random order, all of them in every round."""
    while True:
        for place in torch.randperm(len(pieces), generator=generator).tolist():
            yield pieces[place]


def pieces_of(batches: Sequence[Batch]) -> list[Batch]:
    """Splits batches by rows to save memory; batches that cannot be split are kept."""
    pieces: list[Batch] = []
    for batch in batches:
        rows = _rows(batch)
        size = max(1, _PIECE * rows // _tokens(batch)) if _is_text(batch) else 1
        if size >= rows or any(len(value) != rows for value in batch.values()):
            pieces.append(batch)
            continue
        parts = {name: value.split(size) for name, value in batch.items()}
        pieces += [dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True)]
    return pieces


def _is_text(batch: Batch) -> bool:
    return "input_ids" in batch


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _tokens(batch: Batch) -> int:
    """Number of tokens that are not padding; the number of rows if the batch is not text."""
    if not _is_text(batch):
        return _rows(batch)
    mask = batch.get("attention_mask")
    ids = batch["input_ids"]
    return max(1, int(mask.bool().sum()) if mask is not None and mask.shape == ids.shape else ids.numel())
